/* fuzz_run.c - runs a fuzz target without a fuzzer: its seeds and the files given, then changes of
 * them and made-up inputs, the same ones every time.
 *
 *   fuzz_x [-runs=N] [-seed=S] [-dump=FOLDER] [FILE | FOLDER]...
 *
 * -dump writes the target's own seeds as files, for a fuzzer to begin with. Options it does not
 * know are ignored, so that it can stand in for libFuzzer's.
 */
#include "tests/fuzz/fuzz.h"

#include "src/base/file.h"
#include "src/base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma weak LLVMFuzzerInitialize
#pragma weak fuzz_seed

#define MADE_MAX 3209
#define ITEMS_MAX 1024
#define CHANGES_MAX 8

struct item {
    uint8_t *data;
    size_t n;
};

static struct {
    struct item item[ITEMS_MAX];
    int n;
    uint64_t seed;
    uint32_t run, draw; /* of the dice */
    uint8_t input[FUZZ_INPUT_MAX];
    size_t size;
} f;

static uint32_t dice(uint32_t below)
{
    return below ? philox4x32(f.run, f.draw++, 0, 0, f.seed).w[0] % below : 0;
}

/* ---- the corpus ------------------------------------------------------------------------------ */

static void add(const void *data, size_t n)
{
    struct item *it = &f.item[f.n];

    if (f.n == ITEMS_MAX)
        return;
    n = n < FUZZ_INPUT_MAX ? n : FUZZ_INPUT_MAX;
    it->data = malloc(n + !n);
    if (!it->data)
        abort();
    memcpy(it->data, data, n);
    it->n = n;
    f.n++;
}

static void add_path(const char *path);

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void add_folder(const char *path)
{
    struct dirent **entry;
    int n = scandir(path, &entry, NULL, by_name);

    for (int i = 0; i < n; i++) {
        char below[PATH_CAP];

        if (entry[i]->d_name[0] != '.' &&
            path_join(below, sizeof(below), path, entry[i]->d_name) == 0)
            add_path(below);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

static void add_path(const char *path)
{
    static uint8_t data[FUZZ_INPUT_MAX];
    struct stat st;
    size_t n;
    FILE *in;

    if (stat(path, &st) != 0) {
        fprintf(stderr, "%s is not there\n", path);
        exit(1);
    }
    if (S_ISDIR(st.st_mode)) {
        add_folder(path);
        return;
    }
    in = fopen(path, "rbe");
    if (!in)
        abort();
    n = fread(data, 1, sizeof(data), in);
    fclose(in);
    add(data, n);
}

static void add_seeds(const char *dump)
{
    static uint8_t data[FUZZ_INPUT_MAX];
    size_t n;

    for (int i = 0; fuzz_seed && (n = fuzz_seed(i, data)) > 0; i++) {
        char path[PATH_CAP], name[32];

        add(data, n);
        snprintf(name, sizeof(name), "seed%d", i);
        if (dump &&
            (path_join(path, sizeof(path), dump, name) < 0 || file_write(path, data, n, 0644) < 0))
            exit(1);
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Small numbers are common, since most of what is checked is a range. */
static void make_up(void)
{
    f.size = dice(4) ? dice(100) : dice(MADE_MAX);
    for (size_t i = 0; i < f.size; i++) {
        uint32_t kind = dice(8);

        f.input[i] = (uint8_t)(kind < 5 ? 0 : dice(kind < 7 ? 8 : 256));
    }
}

/* Room for n more bytes at `at`. */
static size_t widen(size_t at, size_t n)
{
    if (n > FUZZ_INPUT_MAX - f.size)
        n = FUZZ_INPUT_MAX - f.size;
    memmove(f.input + at + n, f.input + at, f.size - at);
    f.size += n;
    return n;
}

static void put_number(size_t at)
{
    static const uint64_t edges[] = { 0,          1,          2,          0x7f,       0x80,
                                      0xff,       0x100,      0x7fff,     0x8000,     0xffff,
                                      0x10000,    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
                                      1ULL << 62, 1ULL << 63, UINT64_MAX };
    uint64_t v =
        edges[dice(sizeof(edges) / sizeof(edges[0]))] + (dice(3) ? 0 : dice(9)) - 4 * !dice(8);
    size_t n = (size_t)1 << dice(4);

    if (n > f.size - at)
        n = f.size - at;
    memcpy(f.input + at, &v, n);
}

static void put_word(size_t at)
{
    static const char *const words[] = { "0",
                                         "-1",
                                         "1e999",
                                         "18446744073709551616",
                                         "9223372036854775807",
                                         "null",
                                         "true",
                                         "[]",
                                         "{}",
                                         "\"\"",
                                         "[[[[",
                                         "\\ud800",
                                         "\\u0000",
                                         "\xff",
                                         "\xc0\x80",
                                         "\xf0\x9f\x98\x80",
                                         ",",
                                         ":",
                                         "=",
                                         "\n",
                                         " = ",
                                         "..",
                                         "/",
                                         "%s%n",
                                         "NaN" };
    const char *word = words[dice(sizeof(words) / sizeof(words[0]))];
    size_t n = widen(at, strlen(word));

    memcpy(f.input + at, word, n);
}

static void change(void)
{
    size_t at = f.size ? dice((uint32_t)f.size) : 0, n;

    if (f.size == 0) {
        put_word(0);
        return;
    }
    switch (dice(9)) {
    case 0:
        f.input[at] ^= (uint8_t)(1 << dice(8));
        break;
    case 1:
        f.input[at] = (uint8_t)dice(256);
        break;
    case 2:
        put_number(at);
        break;
    case 3:
        put_word(at);
        break;
    case 4: /* cut out */
        n = 1 + dice(dice(2) ? 8 : (uint32_t)(f.size - at));
        n = n < f.size - at ? n : f.size - at;
        memmove(f.input + at, f.input + at + n, f.size - at - n);
        f.size -= n;
        break;
    case 5: /* twice */
        n = 1 + dice(dice(2) ? 16 : (uint32_t)(f.size - at));
        n = n < f.size - at ? n : f.size - at;
        n = widen(at, n);
        break;
    case 6: /* cut off */
        f.size = at;
        break;
    case 7: { /* the end of another one */
        const struct item *it = &f.item[dice((uint32_t)f.n)];
        size_t from = it->n ? dice((uint32_t)it->n) : 0;

        n = it->n - from < FUZZ_INPUT_MAX - at ? it->n - from : FUZZ_INPUT_MAX - at;
        memcpy(f.input + at, it->data + from, n);
        f.size = at + n;
        break;
    }
    default: /* a digit */
        for (size_t i = 0; i < f.size; i++, at = at + 1 < f.size ? at + 1 : 0)
            if (f.input[at] >= '0' && f.input[at] <= '9') {
                f.input[at] = (uint8_t)('0' + dice(10));
                break;
            }
    }
}

static void next_input(uint32_t run)
{
    const struct item *it;

    f.run = run;
    f.draw = 0;
    if (f.n == 0 || dice(8) == 0) {
        make_up();
        return;
    }
    it = &f.item[dice((uint32_t)f.n)];
    memcpy(f.input, it->data, it->n);
    f.size = it->n;
    for (uint32_t i = dice(CHANGES_MAX) + 1; i > 0; i--)
        change();
}

/* An input of exactly its size, so that a read behind it is seen. */
static void run(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n + !n);

    if (!copy)
        abort();
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    const char *dump = NULL;
    long runs = 20000;

    f.seed = 1;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-runs=", 6) == 0)
            runs = atol(argv[i] + 6);
        else if (strncmp(argv[i], "-seed=", 6) == 0)
            f.seed = strtoull(argv[i] + 6, NULL, 0);
        else if (strncmp(argv[i], "-dump=", 6) == 0)
            dump = argv[i] + 6;
        else if (argv[i][0] != '-')
            add_path(argv[i]);
    }
    add_seeds(dump);
    for (int i = 0; i < f.n; i++)
        run(f.item[i].data, f.item[i].n);
    for (long i = 0; i < runs; i++) {
        next_input((uint32_t)i);
        run(f.input, f.size);
    }
    printf("%d inputs as given, %ld made of them with seed %llu\n", f.n, runs,
           (unsigned long long)f.seed);
    for (int i = 0; i < f.n; i++)
        free(f.item[i].data);
    return 0;
}
