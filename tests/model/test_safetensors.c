#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/json.h"
#include "src/model/safetensors.h"
#include "src/model/source.h"
#include "tests/model/source_weight.h"
#include "tests/model/tensors.h"

#define GOLDEN VECTORS "/formats/safetensors"

/* Every file and folder of the golden corpus ends as its list says, and a refusal names the
 * file. */
Test(safetensors, golden_verdicts)
{
    struct last_line line = { 0 };
    struct json *cases;
    int files = 0, folders = 0;

    cr_assert(eq(int, json_read(GOLDEN "/cases.json", 1 << 20, 4, &cases), 0));
    log_sink(keep_line, &line);
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json *c = json_at(cases, i);
        const char *name, *verdict, *why;
        struct safetensors *file = NULL;
        struct source *folder = NULL;
        char path[PATH_CAP];
        int r, accept;

        cr_assert(json_str(c, "verdict", &verdict) == 0 && json_str(c, "why", &why) == 0);
        accept = strcmp(verdict, "accept") == 0;
        line = (struct last_line){ 0 };
        if (json_has(c, "file")) {
            cr_assert(json_str(c, "file", &name) == 0);
            path_join(path, sizeof(path), GOLDEN, name);
            r = safetensors_open(path, &file);
            files++;
        } else {
            cr_assert(json_str(c, "dir", &name) == 0);
            path_join(path, sizeof(path), GOLDEN, name);
            r = source_hf_open(path, &folder);
            folders++;
        }
        cr_expect(eq(int, r == 0, accept), "%s: %s (%s)", name, why, line.text);
        cr_expect(r == 0 || strstr(line.text, name), "%s: message without the name: %s", name,
                  line.text);
        if (strcmp(name, "idx_unlisted_tensor") == 0)
            cr_expect(eq(int, line.n, 1), "one warning line for unlisted tensors");
        else
            cr_expect(eq(int, line.n, !accept), "%s: one line an error, none else", name);
        safetensors_close(file);
        if (folder)
            folder->ops->close(folder);
    }
    cr_expect(eq(int, files, 65));
    cr_expect(eq(int, folders, 12));
    json_close(cases);
}

struct value_case {
    const char *file, *tensor, *type;
    int rank;
    uint64_t elements;
};

static const struct value_case values[] = {
    { "ok_minimal", "a", "F32", 2, 4 },
    { "ok_scalar", "p.mul1", "I32", 0, 1 },
    { "ok_escapes", "a/\xc3\xa9", "F32", 1, 4 },
    { "ok_zero_elements", "z", "F16", 2, 0 },
};

Test(safetensors, tensors_are_what_the_header_says)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct safetensors *s;
        const struct st_tensor *t;
        char path[PATH_CAP];

        snprintf(path, sizeof(path), GOLDEN "/%s.safetensors", values[i].file);
        cr_assert(eq(int, safetensors_open(path, &s), 0));
        t = safetensors_find(s, values[i].tensor);
        cr_assert(t != NULL, "%s", values[i].file);
        cr_expect(eq(str, (char *)t->type, (char *)values[i].type), "%s", values[i].file);
        cr_expect(eq(int, t->rank, values[i].rank), "%s", values[i].file);
        cr_expect(eq(ulong, t->elements, values[i].elements), "%s", values[i].file);
        cr_expect(safetensors_find(s, "no such tensor") == NULL);
        safetensors_close(s);
    }
}

struct header_case {
    const char *name, *header;
    uint64_t data_bytes;
    int err;
};

#define F32_AT(range, shape)                                                                       \
    "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}}"

static const struct header_case headers[] = {
    { "as it should be", F32_AT("[0,16]", "[2,2]"), 16, 0 },
    { "spaces behind it", F32_AT("[0,16]", "[2,2]") "   ", 16, 0 },
    { "newline behind it", F32_AT("[0,16]", "[2,2]") "\n", 16, -EINVAL },
    { "one byte", "{", 0, -EINVAL },
    { "signed zero", F32_AT("[-0,16]", "[2,2]"), 16, -EINVAL },
    { "signed zero at the end", F32_AT("[0,16]", "[4,-0]"), 16, -EINVAL },
    { "sign inside a name is no sign",
      "{\"-0,\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0 },
    { "escaped quote before a sign",
      "{\"\\\"-0,\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0 },
    { "offset 2^63", F32_AT("[0,9223372036854775808]", "[2,2]"), 16, -EINVAL },
    { "offset 2^64 + 16", F32_AT("[0,18446744073709551632]", "[2,2]"), 16, -EINVAL },
    { "one byte missing", F32_AT("[0,16]", "[2,2]"), 15, -EINVAL },
    { "no data area for it", F32_AT("[0,16]", "[2,2]"), 0, -EINVAL },
    { "bytes overflow", F32_AT("[0,0]", "[4611686018427387904]"), 0, -EINVAL },
    { "elements overflow behind a zero are never formed",
      F32_AT("[0,0]", "[0,4294967296,4294967296]"), 0, 0 },
    { "nine dimensions", F32_AT("[0,4]", "[1,1,1,1,1,1,1,1,1]"), 4, -EINVAL },
    { "eight dimensions", F32_AT("[0,4]", "[1,1,1,1,1,1,1,1]"), 4, 0 },
    { "sub-byte type", "{\"t\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
      -EINVAL },
    { "null entry", "{\"t\":null}", 0, -EINVAL },
    { "null type", "{\"t\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL },
    { "nested 8 deep",
      "{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":[[[[[[1]]]]]]}}", 0, 0 },
    { "nested 9 deep",
      "{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":[[[[[[[1]]]]]]]}}", 0,
      -EINVAL },
    { "negative number in an unknown member",
      "{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":-1}}", 0, 0 },
    { "name of 1024 bytes is the longest", NULL, 1024, 0 },
    { "name of 1025 bytes", NULL, 1025, -EINVAL },
};

Test(safetensors, rules_that_the_corpus_leaves_open)
{
    struct last_line line = { 0 };

    log_sink(keep_line, &line);
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        const struct header_case *c = &headers[i];
        struct safetensors *s = NULL;
        uint64_t data_bytes = c->data_bytes;
        char buf[2048];
        int r;

        if (c->header) {
            snprintf(buf, sizeof(buf), "%s", c->header);
        } else {
            snprintf(buf, sizeof(buf),
                     "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                     (int)c->data_bytes, 7);
            data_bytes = 0;
        }
        r = safetensors_parse("x.safetensors", buf, strlen(buf), data_bytes, &s);
        cr_expect(eq(int, r, c->err), "%s (%s)", c->name, line.text);
        cr_expect(r == 0 || strstr(line.text, "x.safetensors"), "%s: %s", c->name, line.text);
        safetensors_close(s);
    }
}

/* A file that is cut after it was opened ends a read with the file, the tensor and the place. */
Test(safetensors, truncation_under_a_reader_is_an_error)
{
    char folder[PATH_CAP], path[PATH_CAP], name[64];
    struct last_line line = { 0 };
    struct tensors f = { 0 };
    struct tensor t;
    struct source *s;
    uint64_t first;
    uint16_t *v = bf16_values("w", 64 * 64), got[64 * 64];

    temp_folder(folder);
    tensors_add(&f, "w.weight", "BF16", "[64,64]", v, sizeof(got));
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    cr_assert(eq(int, source_weight(s, "w.weight", 64, 64, &t, name, sizeof(name), &first), 0));
    cr_assert(eq(int, s->ops->read(s, name, &t, 0, got, sizeof(got)), 0));
    cr_expect(memcmp(got, v, sizeof(got)) == 0);
    path_join(path, sizeof(path), folder, "model.safetensors");
    cr_assert(truncate(path, 4096) == 0);
    log_sink(keep_line, &line);
    cr_expect(eq(int, s->failed, false));
    cr_expect(eq(int, s->ops->read(s, name, &t, 0, got, sizeof(got)), -EIO));
    cr_expect(s->failed);
    cr_expect(strstr(line.text, "model.safetensors") && strstr(line.text, "w.weight") &&
                  strstr(line.text, "4096"),
              "%s", line.text);
    cr_expect(eq(int, s->ops->read(s, name, &t, 8190, got, 4), -EINVAL), "outside the tensor");
    cr_assert(eq(int, source_mixes_open(s, &s), 0));
    cr_expect(eq(int, s->failed, false));
    cr_expect(eq(int, s->ops->read(s, name, &t, 0, got, sizeof(got)), -EIO));
    cr_expect(s->failed, "in front of another source, too");
    s->ops->close(s);
    free(v);
    folder_count(folder, 1);
}

/* The same of a large tensor, which is read past the page cache where the file system can. */
Test(safetensors, a_large_tensor_that_is_cut_is_an_error)
{
    enum { BYTES = 300000, CUT = 2000 };
    char folder[PATH_CAP], path[PATH_CAP];
    char *v = malloc(BYTES), *got = malloc(BYTES);
    struct last_line line = { 0 };
    struct tensors f = { 0 };
    struct source *s;
    struct tensor t;
    struct stat st;

    memset(v, 7, BYTES);
    temp_folder(folder);
    tensors_add(&f, "w", "U8", "[300000]", v, BYTES);
    tensors_write(&f, folder, "model.safetensors");
    cr_assert(eq(int, source_hf_open(folder, &s), 0));
    cr_assert(eq(int, s->ops->find(s, "w", 0, 0, &t), 0));
    path_join(path, sizeof(path), folder, "model.safetensors");
    cr_assert(stat(path, &st) == 0 && truncate(path, st.st_size - CUT) == 0);
    log_sink(keep_line, &line);
    for (uint64_t at = 0; at < 6000; at += 677) {
        cr_expect(eq(int, s->ops->read(s, "w", &t, at, got, BYTES - at), -EIO), "from %d", (int)at);
        memset(got, 0, BYTES);
        cr_expect(eq(int, s->ops->read(s, "w", &t, at, got, BYTES - CUT - at), 0));
        cr_expect(memcmp(got, v, BYTES - CUT - at) == 0, "from %d", (int)at);
    }
    s->ops->close(s);
    free(v);
    free(got);
    folder_count(folder, 1);
}

/* The longest header that a file can have, and one that ends behind it. */
Test(safetensors, a_header_ends_with_its_file)
{
    struct last_line line = { 0 };
    char folder[PATH_CAP], path[PATH_CAP];

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "x.safetensors");
    log_sink(keep_line, &line);
    for (uint64_t n = 2; n < 14; n++) {
        char bytes[10] = { 0, 0, 0, 0, 0, 0, 0, 0, '{', '}' };
        struct safetensors *s = NULL;

        memcpy(bytes, &n, sizeof(n));
        cr_assert(eq(int, file_write(path, bytes, sizeof(bytes), 0644), 0));
        cr_expect(eq(int, safetensors_open(path, &s), n == 2 ? 0 : -EINVAL), "%d", (int)n);
        safetensors_close(s);
    }
    folder_count(folder, 1);
}

Test(safetensors, only_regular_files_and_links_to_them)
{
    char folder[PATH_CAP], path[PATH_CAP];
    struct last_line line = { 0 };
    struct safetensors *s;

    temp_folder(folder);
    path_join(path, sizeof(path), folder, "link");
    cr_assert(symlink(GOLDEN "/ok_minimal.safetensors", path) == 0);
    cr_assert(eq(int, safetensors_open(path, &s), 0), "download caches are made of links");
    safetensors_close(s);
    log_sink(keep_line, &line);
    cr_expect(eq(int, safetensors_open(folder, &s), -EINVAL));
    cr_expect(eq(int, safetensors_open("/dev/zero", &s), -EINVAL));
    cr_expect(eq(int, safetensors_open("/nonexistent", &s), -ENOENT));
    folder_count(folder, 1);
}
