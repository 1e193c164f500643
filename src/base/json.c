/* json.c owns parsed trees: nodes that know their parent and key, over the values of the
 * library. */
#include "src/base/json.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"

#define DEPTH_CAP 1000
#define SMALL_OBJECT 16 /* members found by looking at all of them; larger objects get a table */
#define PATH_TEXT 512
#define WHY_TEXT 256

struct json {
    enum json_type type;
    size_t count; /* children of an array or object */
    const struct json *parent;
    const char *key; /* of a member; the root's is the name of the text */
    union {
        bool truth;
        int64_t number;
        double real;
        const char *text;
        struct json *child; /* [count], file order */
    };
    uint32_t
        *table; /* [table_size]: 1 + child by hash of its key, open addressing; NULL if small */
    size_t table_size;
};

struct tree {
    struct json root; /* first: json_close gets its address */
    json_t *values;   /* owns every string and key */
    char *name;
};

static const char *const type_names[] = {
    [JSON_IS_NULL] = "null",          [JSON_IS_BOOL] = "a boolean",  [JSON_IS_INT] = "an integer",
    [JSON_IS_REAL] = "a real number", [JSON_IS_STRING] = "a string", [JSON_IS_ARRAY] = "an array",
    [JSON_IS_OBJECT] = "an object",
};

/* Refuses depth before the library recurses, and says where. Validates nothing else. */
static int check_depth(const char *text, size_t bytes, int max_depth, char *why, size_t cap)
{
    int depth = 0, line = 1;
    size_t line_start = 0;
    bool in_string = false;

    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];

        if (c == '\n') {
            line++;
            line_start = i + 1;
        } else if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth) {
                snprintf(why, cap, "line %d column %zu: nested deeper than %d", line,
                         i - line_start + 1, max_depth);
                return -EINVAL;
            }
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return 0;
}

static size_t key_slot(const struct json *o, const char *key)
{
    return (size_t)fnv1a64(FNV1A64_INIT, key, strlen(key)) & (o->table_size - 1);
}

static int build_table(struct json *o)
{
    o->table_size = 64;
    while (o->table_size < 2 * o->count)
        o->table_size *= 2;
    o->table = calloc(o->table_size, sizeof(*o->table));
    if (!o->table)
        return -ENOMEM;
    for (size_t i = 0; i < o->count; i++) {
        size_t s = key_slot(o, o->child[i].key);

        while (o->table[s])
            s = (s + 1) & (o->table_size - 1);
        o->table[s] = (uint32_t)(i + 1);
    }
    return 0;
}

static int build(struct json *n, json_t *v);

static int build_children(struct json *n, json_t *v)
{
    const char *key;
    json_t *member;
    size_t i = 0;
    int r = 0;

    n->count = n->type == JSON_IS_ARRAY ? json_array_size(v) : json_object_size(v);
    if (n->count == 0)
        return 0;
    if (n->count >= UINT32_MAX)
        return -ENOMEM;
    n->child = calloc(n->count, sizeof(*n->child));
    if (!n->child)
        return -ENOMEM;
    for (i = 0; i < n->count; i++)
        n->child[i].parent = n;
    i = 0;
    if (n->type == JSON_IS_ARRAY) {
        for (; i < n->count && r == 0; i++)
            r = build(&n->child[i], json_array_get(v, i));
        return r;
    }
    json_object_foreach(v, key, member)
    {
        n->child[i].key = key;
        r = build(&n->child[i++], member);
        if (r < 0)
            return r;
    }
    return n->count > SMALL_OBJECT ? build_table(n) : 0;
}

static int build(struct json *n, json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        n->type = JSON_IS_OBJECT;
        return build_children(n, v);
    case JSON_ARRAY:
        n->type = JSON_IS_ARRAY;
        return build_children(n, v);
    case JSON_STRING:
        n->type = JSON_IS_STRING;
        n->text = json_string_value(v);
        return 0;
    case JSON_INTEGER:
        n->type = JSON_IS_INT;
        n->number = json_integer_value(v);
        return 0;
    case JSON_REAL:
        n->type = JSON_IS_REAL;
        n->real = json_real_value(v);
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        n->type = JSON_IS_BOOL;
        n->truth = json_is_true(v);
        return 0;
    case JSON_NULL:
        break;
    }
    n->type = JSON_IS_NULL;
    return 0;
}

static void free_children(struct json *n)
{
    if (n->type != JSON_IS_ARRAY && n->type != JSON_IS_OBJECT)
        return;
    for (size_t i = 0; n->child && i < n->count; i++)
        free_children(&n->child[i]);
    free(n->child);
    free(n->table);
}

/* The tree of a text that check_depth let pass. What is wrong, without the name of the text, goes
 * to why. */
static int parse(const char *text, size_t bytes, const char *name, struct json **out, char *why,
                 size_t cap)
{
    struct tree *t = calloc(1, sizeof(*t));
    json_error_t err;
    int r = -ENOMEM;

    snprintf(why, cap, "no memory");
    if (!t)
        return r;
    t->name = strdup(name);
    if (!t->name)
        goto free_tree;
    t->root.key = t->name;
    t->values = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &err);
    if (!t->values) {
        snprintf(why, cap, "line %d column %d: %s", err.line, err.column, err.text);
        r = json_error_code(&err) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
        goto free_tree;
    }
    r = build(&t->root, t->values);
    if (r < 0)
        goto free_tree;
    *out = &t->root;
    return 0;

free_tree:
    json_close(&t->root);
    return r;
}

int json_try(const char *text, size_t bytes, const char *name, int max_depth, struct json **out,
             char *why, size_t cap)
{
    assert(max_depth >= 1 && max_depth <= DEPTH_CAP);
    if (check_depth(text, bytes, max_depth, why, cap) < 0)
        return -EINVAL;
    return parse(text, bytes, name, out, why, cap);
}

int json_parse(const char *text, size_t bytes, const char *name, int max_depth, struct json **out)
{
    char why[WHY_TEXT];
    int r = json_try(text, bytes, name, max_depth, out, why, sizeof(why));

    return r < 0 ? fail(r, "%s: %s", name, why) : 0;
}

int json_read(const char *path, size_t max_bytes, int max_depth, struct json **out)
{
    char *text;
    size_t bytes;
    int r = file_read(path, max_bytes, &text, &bytes);

    if (r < 0)
        return r;
    r = json_parse(text, bytes, path, max_depth, out);
    free(text);
    return r;
}

void json_close(struct json *root)
{
    struct tree *t = (struct tree *)root;

    if (!t)
        return;
    free_children(&t->root);
    json_decref(t->values);
    free(t->name);
    free(t);
}

enum json_type json_type_of(const struct json *v)
{
    return v->type;
}

bool json_is(const struct json *v, enum json_type type)
{
    return v && v->type == type;
}

static size_t put_text(char *buf, size_t cap, size_t at, const char *s)
{
    for (; *s && at + 1 < cap; s++)
        buf[at++] =
            (unsigned char)*s < 0x20 ? '?' : *s; /* a key may hold a newline, a log line not */
    buf[at] = 0;
    return at;
}

static size_t put_path(const struct json *v, char *buf, size_t cap)
{
    char index[32];
    size_t at;

    if (!v->parent)
        return put_text(buf, cap, 0, v->key);
    at = put_path(v->parent, buf, cap);
    if (!v->parent->parent)
        at = put_text(buf, cap, at, ": ");
    if (v->parent->type == JSON_IS_ARRAY) {
        snprintf(index, sizeof(index), "[%zu]", (size_t)(v - v->parent->child));
        return put_text(buf, cap, at, index);
    }
    if (v->parent->parent)
        at = put_text(buf, cap, at, ".");
    return put_text(buf, cap, at, v->key);
}

const char *json_path(const struct json *v, char *buf, size_t cap)
{
    put_path(v, buf, cap);
    return buf;
}

size_t json_count(const struct json *v)
{
    return v->count;
}

const struct json *json_at(const struct json *v, size_t i)
{
    assert(i < v->count);
    return &v->child[i];
}

const char *json_key(const struct json *v)
{
    return v->parent ? v->key : NULL;
}

const struct json *json_get(const struct json *o, const char *key)
{
    if (!json_is(o, JSON_IS_OBJECT))
        return NULL;
    if (!o->table) {
        for (size_t i = 0; i < o->count; i++)
            if (strcmp(o->child[i].key, key) == 0)
                return &o->child[i];
        return NULL;
    }
    for (size_t s = key_slot(o, key); o->table[s]; s = (s + 1) & (o->table_size - 1))
        if (strcmp(o->child[o->table[s] - 1].key, key) == 0)
            return &o->child[o->table[s] - 1];
    return NULL;
}

bool json_has(const struct json *o, const char *key)
{
    const struct json *v = json_get(o, key);

    return v && v->type != JSON_IS_NULL;
}

static int fail_type(const struct json *v, const char *want)
{
    char path[PATH_TEXT];

    return fail(-EINVAL, "%s: want %s, got %s", json_path(v, path, sizeof(path)), want,
                type_names[v->type]);
}

int json_as_i64(const struct json *v, int64_t lo, int64_t hi, int64_t *out)
{
    char path[PATH_TEXT];

    if (v->type != JSON_IS_INT)
        return fail_type(v, "an integer");
    if (v->number < lo || v->number > hi)
        return fail(-EINVAL, "%s: %lld is not in %lld .. %lld", json_path(v, path, sizeof(path)),
                    (long long)v->number, (long long)lo, (long long)hi);
    *out = v->number;
    return 0;
}

int json_as_int(const struct json *v, int lo, int hi, int *out)
{
    int64_t wide;
    int r = json_as_i64(v, lo, hi, &wide);

    if (r == 0)
        *out = (int)wide;
    return r;
}

int json_as_f64(const struct json *v, double *out)
{
    if (v->type != JSON_IS_INT && v->type != JSON_IS_REAL)
        return fail_type(v, "a number");
    *out = v->type == JSON_IS_INT ? (double)v->number : v->real;
    return 0;
}

int json_as_bool(const struct json *v, bool *out)
{
    if (v->type != JSON_IS_BOOL)
        return fail_type(v, "a boolean");
    *out = v->truth;
    return 0;
}

int json_as_str(const struct json *v, const char **out)
{
    if (v->type != JSON_IS_STRING)
        return fail_type(v, "a string");
    *out = v->text;
    return 0;
}

static int as_container(const struct json *v, enum json_type type, const struct json **out)
{
    if (v->type != type)
        return fail_type(v, type_names[type]);
    *out = v;
    return 0;
}

/* *v is the member, NULL if it is absent or null. */
static int find(const struct json *o, const char *key, const struct json **v)
{
    if (o->type != JSON_IS_OBJECT)
        return fail_type(o, "an object");
    *v = json_has(o, key) ? json_get(o, key) : NULL;
    return 0;
}

static int need(const struct json *o, const char *key, const struct json **v)
{
    char path[PATH_TEXT];
    int r = find(o, key, v);

    if (r < 0 || *v)
        return r;
    return fail(-EINVAL, "%s%s%s: missing", json_path(o, path, sizeof(path)),
                o->parent ? "." : ": ", key);
}

/* The body of a getter: find the member or need it, then convert it. */
#define MEMBER(lookup, convert)                                                                    \
    const struct json *v = NULL;                                                                   \
    int r = lookup(o, key, &v);                                                                    \
    return r < 0 || !v ? r : convert

int json_int(const struct json *o, const char *key, int lo, int hi, int *out)
{
    MEMBER(need, json_as_int(v, lo, hi, out));
}

int json_i64(const struct json *o, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    MEMBER(need, json_as_i64(v, lo, hi, out));
}

int json_f64(const struct json *o, const char *key, double *out)
{
    MEMBER(need, json_as_f64(v, out));
}

int json_bool(const struct json *o, const char *key, bool *out)
{
    MEMBER(need, json_as_bool(v, out));
}

int json_str(const struct json *o, const char *key, const char **out)
{
    MEMBER(need, json_as_str(v, out));
}

int json_get_array(const struct json *o, const char *key, const struct json **out)
{
    MEMBER(need, as_container(v, JSON_IS_ARRAY, out));
}

int json_get_object(const struct json *o, const char *key, const struct json **out)
{
    MEMBER(need, as_container(v, JSON_IS_OBJECT, out));
}

int json_opt_int(const struct json *o, const char *key, int lo, int hi, int *out)
{
    MEMBER(find, json_as_int(v, lo, hi, out));
}

int json_opt_f64(const struct json *o, const char *key, double *out)
{
    MEMBER(find, json_as_f64(v, out));
}

int json_opt_bool(const struct json *o, const char *key, bool *out)
{
    MEMBER(find, json_as_bool(v, out));
}

int json_opt_str(const struct json *o, const char *key, const char **out)
{
    MEMBER(find, json_as_str(v, out));
}

int json_opt_array(const struct json *o, const char *key, const struct json **out)
{
    MEMBER(find, as_container(v, JSON_IS_ARRAY, out));
}

int json_opt_object(const struct json *o, const char *key, const struct json **out)
{
    MEMBER(find, as_container(v, JSON_IS_OBJECT, out));
}
