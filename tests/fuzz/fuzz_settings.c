/* fuzz_settings - a settings file of any bytes: refused by name, or settings that read back as what
 * they say. */
#include "tests/fuzz/fuzz.h"

#include "src/base/config.h"
#include "src/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int file; /* a nameless one, that config_read can open by its number */
static char path[64];

static void ignore(void *arg, enum log_level level, const char *line)
{
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_sink(ignore, NULL);
    file = memfd_create("settings", MFD_CLOEXEC);
    if (file < 0)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    return 0;
}

static const char *const seeds[] = {
    "# two ranks\nmodel = models/x\nranks = 2\nlink = tcp\nsecret = s\nhosts = 192.0.2.1, "
    "192.0.2.2\n",
    "slots=4\ncontext = 8192\nengram_cache = 256MiB\npeer_timeout_ms = 1000\nheartbeat_ms = 100\n",
    "depth = auto\nspec_draft = on\ngraphs = off\nnumerics = fp32\npartials = bf16\nthreads = 0\n",
    "stripe_min = 32KiB\nrails = auto\ncosts=auto\nlog_level = trace\nplan_form = imm\nport = 1\n",
};

size_t fuzz_seed(int i, uint8_t out[FUZZ_INPUT_MAX])
{
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0])))
        return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

static void put(const void *data, size_t n)
{
    if (ftruncate(file, 0) != 0 || pwrite(file, data, n, 0) != (ssize_t)n)
        abort();
}

static char *text_of(const struct config *c)
{
    char *text;

    if (config_agree_text(c, &text) < 0)
        abort();
    return text;
}

/* What is in force, written out and read again, is the same. */
static void again(const struct config *c)
{
    struct config second;
    char *dump = NULL, *one, *two;
    size_t bytes;
    FILE *f = open_memstream(&dump, &bytes);

    if (!f || config_dump(c, f) < 0 || fclose(f) != 0)
        abort();
    put(dump, bytes);
    if (config_init(&second) < 0 || config_read(&second, path) < 0 ||
        config_check(&second) != config_check(c))
        abort();
    one = text_of(c);
    two = text_of(&second);
    if (strcmp(one, two) != 0)
        abort();
    free(one);
    free(two);
    free(dump);
    config_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c;
    char host[256];

    put(data, size);
    if (config_init(&c) < 0)
        abort();
    if (config_read(&c, path) == 0 && config_check(&c) == 0) {
        for (int r = 0; r < c.ranks; r++)
            config_host(&c, r, host, sizeof(host));
        again(&c);
    }
    config_free(&c);
    return 0;
}
