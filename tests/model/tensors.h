/* tensors - what the tests of sources and packs share: folders, small checkpoints, the last error
 * line. */
#ifndef TANDEM_TESTS_MODEL_TENSORS_H
#define TANDEM_TESTS_MODEL_TENSORS_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cast.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/rng.h"

/* The last line that was logged, for messages that must name something. */
struct last_line {
    char text[2048];
    int n;
};

static inline void keep_line(void *arg, enum log_level level, const char *line)
{
    struct last_line *l = arg;

    if (level <= LOG_WARN) {
        snprintf(l->text, sizeof(l->text), "%s", line);
        l->n++;
    }
}

static inline void temp_folder(char path[PATH_CAP])
{
    snprintf(path, PATH_CAP, "/tmp/tandem-test-XXXXXX");
    if (!mkdtemp(path))
        abort();
}

/* Names in a folder but "." and ".."; remove: and unlink them, then the folder. */
static inline int folder_count(const char *path, int remove)
{
    char file[PATH_CAP];
    struct dirent *e;
    DIR *d = opendir(path);
    int n = 0;

    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.' && (!e->d_name[1] || e->d_name[1] == '.'))
            continue;
        n++;
        if (remove && path_join(file, sizeof(file), path, e->d_name) == 0 && unlink(file) < 0)
            folder_count(file, 1);
    }
    if (d)
        closedir(d);
    if (remove)
        rmdir(path);
    return n;
}

/* A checkpoint file in the making: a header and data that grow. */
struct tensors {
    char *header, *data;
    size_t header_bytes, data_bytes;
};

static inline void tensors_add(struct tensors *t, const char *name, const char *type,
                               const char *shape, const void *data, size_t bytes)
{
    t->header = realloc(t->header, t->header_bytes + strlen(name) + strlen(shape) + 128);
    t->header_bytes += (size_t)sprintf(
        t->header + t->header_bytes,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
        t->header_bytes ? "," : "{", name, type, shape, t->data_bytes, t->data_bytes + bytes);
    t->data = realloc(t->data, t->data_bytes + bytes + 1);
    if (bytes > 0)
        memcpy(t->data + t->data_bytes, data, bytes);
    t->data_bytes += bytes;
}

/* Write folder/name and start anew. */
static inline void tensors_write(struct tensors *t, const char *folder, const char *name)
{
    char path[PATH_CAP];
    uint64_t n = t->header_bytes + 1;
    FILE *f;

    path_join(path, sizeof(path), folder, name);
    f = fopen(path, "w");
    if (!f || fwrite(&n, 8, 1, f) != 1 || fwrite(t->header, t->header_bytes, 1, f) != 1 ||
        fputc('}', f) < 0 || (t->data_bytes && fwrite(t->data, t->data_bytes, 1, f) != 1) ||
        fclose(f))
        abort();
    free(t->header);
    free(t->data);
    *t = (struct tensors){ 0 };
}

/* n bf16 values that belong to a name, so that mixed-up tensors show. */
static inline uint16_t *bf16_values(const char *name, size_t n)
{
    uint16_t *v = malloc(n * 2 + 1);
    uint64_t h = 1;

    while (*name)
        h = h * 31 + (unsigned char)*name++;
    for (size_t i = 0; i < n; i++)
        v[i] = bf16_from_f32(synth_uniform(h, i));
    return v;
}

#endif
