/* safetensors.c owns the header of one file: its bounds, its JSON, its entries, its ranges, in
 * that order. */
#include "src/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/log.h"

/* Every type that a file may hold. Those without bytes are packed below a byte and refused. */
static const struct {
    const char *name;
    int bytes;
    enum dtype dtype;
} types[] = {
    { "BOOL", 1, DTYPE_COUNT },    { "U8", 1, DTYPE_COUNT },      { "I8", 1, DTYPE_COUNT },
    { "F8_E4M3", 1, DTYPE_COUNT }, { "F8_E5M2", 1, DTYPE_COUNT }, { "F8_E8M0", 1, DTYPE_COUNT },
    { "I16", 2, DTYPE_COUNT },     { "U16", 2, DTYPE_COUNT },     { "F16", 2, DTYPE_F16 },
    { "BF16", 2, DTYPE_BF16 },     { "I32", 4, DTYPE_COUNT },     { "U32", 4, DTYPE_COUNT },
    { "F32", 4, DTYPE_F32 },       { "I64", 8, DTYPE_COUNT },     { "U64", 8, DTYPE_COUNT },
    { "F64", 8, DTYPE_COUNT },     { "C64", 8, DTYPE_COUNT },     { "F4", 0, DTYPE_COUNT },
    { "F6_E2M3", 0, DTYPE_COUNT }, { "F6_E3M2", 0, DTYPE_COUNT },
};

static uint64_t le64(const unsigned char *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

int safetensors_header(const char *path, int *fd, char **header, size_t *header_bytes,
                       uint64_t *data_bytes)
{
    unsigned char len[8];
    struct stat st;
    uint64_t n, size;
    char *buf;
    int r;
    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (f < 0)
        return fail(-errno, "%s: open: %s", path, strerror(errno));
    if (fstat(f, &st) < 0) {
        r = fail(-errno, "%s: stat: %s", path, strerror(errno));
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        r = fail(-EINVAL, "%s: not a regular file", path);
        goto close_fd;
    }
    size = (uint64_t)st.st_size;
    if (size < sizeof(len)) {
        r = fail(-EINVAL, "%s: %llu bytes, a header length alone has 8", path,
                 (unsigned long long)size);
        goto close_fd;
    }
    r = full_pread(f, len, sizeof(len), 0, path);
    if (r < 0)
        goto close_fd;
    n = le64(len);
    if (n < 2 || n > ST_HEADER_MAX || n > size - sizeof(len)) {
        r = fail(-EINVAL, "%s: header of %llu bytes in a file of %llu; 2 to %u are possible", path,
                 (unsigned long long)n, (unsigned long long)size, ST_HEADER_MAX);
        goto close_fd;
    }
    buf = malloc((size_t)n);
    if (!buf) {
        r = fail(-ENOMEM, "%s: no memory for a header of %llu bytes", path, (unsigned long long)n);
        goto close_fd;
    }
    r = full_pread(f, buf, (size_t)n, sizeof(len), path);
    if (r < 0)
        goto free_buf;
    *fd = f;
    *header = buf;
    *header_bytes = (size_t)n;
    *data_bytes = size - sizeof(len) - n;
    return 0;

free_buf:
    free(buf);
close_fd:
    close(f);
    return r;
}

/* What the JSON library lets pass: white space around the object, and a minus before a zero, which
 * it would read as an unsigned integer. Cuts trailing spaces from *bytes.
 */
static int check_text(const char *path, const char *text, size_t *bytes)
{
    bool in_string = false;

    if (text[0] != '{')
        return fail(-EINVAL, "%s: header does not begin with { at offset 8", path);
    while (text[*bytes - 1] == ' ')
        (*bytes)--;
    if (text[*bytes - 1] != '}')
        return fail(-EINVAL, "%s: header does not end with } and spaces, offset %zu", path,
                    8 + *bytes - 1);
    for (size_t i = 0; i + 2 < *bytes; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && text[i] == '-' && text[i + 1] == '0' && !strchr(".eE", text[i + 2]))
            return fail(-EINVAL, "%s: number with a sign at offset %zu", path, 8 + i);
    }
    return 0;
}

static int read_shape(const char *path, const struct json *v, struct st_tensor *t)
{
    if (json_count(v) > TENSOR_RANK_MAX)
        return fail(-EINVAL, "%s: tensor %s: %zu dimensions, at most %d", path, t->name,
                    json_count(v), TENSOR_RANK_MAX);
    t->rank = (int)json_count(v);
    t->elements = 1;
    for (int i = 0; i < t->rank; i++) {
        int r = json_as_i64(json_at(v, (size_t)i), 0, INT64_MAX, &t->shape[i]);

        if (r < 0)
            return r;
        if (__builtin_mul_overflow(t->elements, (uint64_t)t->shape[i], &t->elements))
            return fail(-EINVAL, "%s: tensor %s: more than 2^64 elements", path, t->name);
    }
    return 0;
}

static int read_type(const char *path, const struct json *v, struct st_tensor *t, uint64_t *bytes)
{
    const char *name;
    int r = json_as_str(v, &name);

    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, types[i].name) != 0)
            continue;
        if (types[i].bytes == 0)
            return fail(-EINVAL, "%s: tensor %s: type %s has no whole bytes", path, t->name, name);
        t->type = types[i].name;
        t->each = types[i].bytes;
        t->dtype = types[i].dtype;
        if (__builtin_mul_overflow(t->elements, (uint64_t)types[i].bytes, bytes))
            return fail(-EINVAL, "%s: tensor %s: more than 2^64 bytes", path, t->name);
        return 0;
    }
    return fail(-EINVAL, "%s: tensor %s: unknown type %s", path, t->name, name);
}

static int read_range(const char *path, const struct json *v, struct st_tensor *t, uint64_t bytes,
                      uint64_t data_bytes)
{
    int64_t begin, end;
    int r;

    if (json_count(v) != 2)
        return fail(-EINVAL, "%s: tensor %s: %zu data_offsets, want 2", path, t->name,
                    json_count(v));
    r = json_as_i64(json_at(v, 0), 0, INT64_MAX, &begin);
    if (r < 0)
        return r;
    r = json_as_i64(json_at(v, 1), 0, INT64_MAX, &end);
    if (r < 0)
        return r;
    if (begin > end || (uint64_t)end > data_bytes)
        return fail(-EINVAL, "%s: tensor %s: bytes %lld to %lld of a data area of %llu", path,
                    t->name, (long long)begin, (long long)end, (unsigned long long)data_bytes);
    if ((uint64_t)(end - begin) != bytes)
        return fail(-EINVAL,
                    "%s: tensor %s: %lld bytes at offset %lld, its shape and type need %llu", path,
                    t->name, (long long)(end - begin), (long long)begin, (unsigned long long)bytes);
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return 0;
}

static int read_entry(const char *path, const struct json *v, uint64_t data_bytes,
                      struct st_tensor *t)
{
    const struct json *shape, *range;
    uint64_t bytes = 0;
    int r;

    if (!json_is(v, JSON_IS_OBJECT))
        return fail(-EINVAL, "%s: tensor %s: not an object", path, t->name);
    r = json_get_array(v, "shape", &shape);
    if (r < 0)
        return r;
    r = json_get_array(v, "data_offsets", &range);
    if (r < 0)
        return r;
    if (!json_has(v, "dtype"))
        return fail(-EINVAL, "%s: tensor %s: no dtype", path, t->name);
    r = read_shape(path, shape, t);
    if (r < 0)
        return r;
    r = read_type(path, json_get(v, "dtype"), t, &bytes);
    if (r < 0)
        return r;
    return read_range(path, range, t, bytes, data_bytes);
}

static int check_metadata(const char *path, const struct json *v)
{
    if (!json_is(v, JSON_IS_OBJECT))
        return fail(-EINVAL, "%s: __metadata__ is not an object", path);
    for (size_t i = 0; i < json_count(v); i++)
        if (!json_is(json_at(v, i), JSON_IS_STRING))
            return fail(-EINVAL, "%s: __metadata__.%s is not a string", path,
                        json_key(json_at(v, i)));
    return 0;
}

/* Ranges ascending, so neighbours tell everything; names break ties of empty tensors. */
static int by_range(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int check_cover(const struct safetensors *s, uint64_t data_bytes)
{
    uint64_t at = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensor[i];

        if (t->begin != at)
            return fail(-EINVAL, "%s: tensor %s: begins at offset %llu of the data, %s %llu",
                        s->path, t->name, (unsigned long long)t->begin,
                        t->begin < at ? "inside the one that ends at" : "behind a hole from",
                        (unsigned long long)at);
        at = t->end;
    }
    if (at != data_bytes)
        return fail(-EINVAL, "%s: %llu bytes behind the last tensor, offset %llu of the data",
                    s->path, (unsigned long long)(data_bytes - at), (unsigned long long)at);
    return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct st_tensor *t = arg;

    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

/* Copy names out of the tree and read every entry. */
static int read_entries(struct safetensors *s, const struct json *root, uint64_t data_bytes)
{
    size_t bytes = 0, n = json_count(root);
    char *name;

    for (size_t i = 0; i < n; i++)
        bytes += strlen(json_key(json_at(root, i))) + 1;
    s->names = malloc(bytes + 1);
    s->tensor = calloc(n + 1, sizeof(*s->tensor));
    s->by_name = calloc(n + 1, sizeof(*s->by_name));
    if (!s->names || !s->tensor || !s->by_name)
        return fail(-ENOMEM, "%s: no memory for %zu tensors", s->path, n);
    name = s->names;
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_at(root, i);
        size_t len = strlen(json_key(v));
        int r;

        if (strcmp(json_key(v), "__metadata__") == 0)
            r = check_metadata(s->path, v);
        else if (len == 0 || len > ST_NAME_MAX)
            r = fail(-EINVAL, "%s: tensor %.32s...: name of %zu bytes, 1 to %d are possible",
                     s->path, json_key(v), len, ST_NAME_MAX);
        else {
            memcpy(name, json_key(v), len + 1);
            s->tensor[s->n].name = name;
            name += len + 1;
            r = read_entry(s->path, v, data_bytes, &s->tensor[s->n++]);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int safetensors_parse(const char *path, const char *header, size_t header_bytes,
                      uint64_t data_bytes, struct safetensors **out)
{
    struct safetensors *s;
    struct json *root;
    int r;

    if (header_bytes < 2)
        return fail(-EINVAL, "%s: header of %zu bytes", path, header_bytes);
    r = check_text(path, header, &header_bytes);
    if (r < 0)
        return r;
    r = json_parse(header, header_bytes, path, ST_DEPTH_MAX, &root);
    if (r < 0)
        return r;
    s = calloc(1, sizeof(*s));
    if (!s) {
        r = fail(-ENOMEM, "%s: no memory", path);
        goto close_root;
    }
    s->fd = -1;
    s->path = strdup(path);
    if (!s->path) {
        r = fail(-ENOMEM, "%s: no memory", path);
        goto close_file;
    }
    r = read_entries(s, root, data_bytes);
    if (r < 0)
        goto close_file;
    qsort(s->tensor, s->n, sizeof(*s->tensor), by_range);
    r = check_cover(s, data_bytes);
    if (r < 0)
        goto close_file;
    for (size_t i = 0; i < s->n; i++)
        s->by_name[i] = i;
    qsort_r(s->by_name, s->n, sizeof(*s->by_name), by_name, s->tensor);
    json_close(root);
    *out = s;
    return 0;

close_file:
    safetensors_close(s);
close_root:
    json_close(root);
    return r;
}

int safetensors_open(const char *path, struct safetensors **out)
{
    struct safetensors *s;
    uint64_t data_bytes;
    size_t header_bytes;
    char *header;
    int fd, r;

    r = safetensors_header(path, &fd, &header, &header_bytes, &data_bytes);
    if (r < 0)
        return r;
    r = safetensors_parse(path, header, header_bytes, data_bytes, &s);
    free(header);
    if (r < 0) {
        close(fd);
        return r;
    }
    s->fd = fd;
    s->data = 8 + header_bytes;
    *out = s;
    return 0;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    free(s->by_name);
    free(s->tensor);
    free(s->names);
    free(s->path);
    free(s);
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    size_t lo = 0, hi = s->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct st_tensor *t = &s->tensor[s->by_name[mid]];
        int c = strcmp(name, t->name);

        if (c == 0)
            return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
