#include "tests/rig/goldens.h"

#include "src/base/file.h"
#include "src/model/safetensors.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const golden_prompts[6] = { "prose_short", "prose_long",   "code_short",
                                        "code_chat",   "struct_count", "struct_json" };

/* Values live as long as the process; the list keeps them in sight of a leak checker. */
struct kept {
    struct kept *next;
    char data[];
};

static struct safetensors *file;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kept *kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static void open_file(void)
{
    if (safetensors_open(VECTORS "/goldens.safetensors", &file) < 0)
        abort();
}

static void *value(size_t *n, const char *type, const char *fmt, va_list ap)
{
    char name[256];
    const struct st_tensor *t;
    struct kept *v;

    pthread_once(&once, open_file);
    vsnprintf(name, sizeof(name), fmt, ap);
    t = safetensors_find(file, name);
    if (!t || strcmp(t->type, type) != 0) {
        fprintf(stderr, "no golden %s of type %s\n", name, type);
        abort();
    }
    v = malloc(sizeof(*v) + t->end - t->begin);
    if (!v ||
        full_pread(file->fd, v->data, t->end - t->begin, (off_t)(file->data + t->begin), name) < 0)
        abort();
    pthread_mutex_lock(&kept_lock);
    v->next = kept;
    kept = v;
    pthread_mutex_unlock(&kept_lock);
    *n = t->elements;
    return v->data;
}

#define GOLDEN(suffix, c_type, type)                                                               \
    const c_type *golden_##suffix(size_t *n, const char *fmt, ...)                                 \
    {                                                                                              \
        va_list ap;                                                                                \
        const c_type *v;                                                                           \
                                                                                                   \
        va_start(ap, fmt);                                                                         \
        v = value(n, type, fmt, ap);                                                               \
        va_end(ap);                                                                                \
        return v;                                                                                  \
    }
GOLDEN(f32, float, "F32")
GOLDEN(i32, int32_t, "I32")
GOLDEN(i64, int64_t, "I64")
