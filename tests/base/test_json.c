#include "src/base/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/base/capture.h"

static struct json *parse(const char *text)
{
    struct json *root = NULL;

    cr_assert(eq(int, json_parse(text, strlen(text), "t", 20, &root), 0), "%s", text);
    return root;
}

struct refusal {
    const char *name, *text, *says;
};

static const struct refusal refusals[] = {
    { "nothing", "", "t: line 1 column 0" },
    { "blank", " \n ", "t: line 2" },
    { "cut object", "{\"a\": 1", "t: line 1 column 7" },
    { "cut string", "{\"a", "t: line 1" },
    { "duplicate key", "{\"a\": 1,\n \"a\": 2}", "t: line 2 column 4: duplicate object key" },
    { "duplicate through an escape", "{\"a\": 1, \"\\u0061\": 2}", "duplicate object key" },
    { "bytes behind the value", "{} x", "end of file expected" },
    { "trailing comma", "[1,]", "t: line 1 column 4" },
    { "single quotes", "{'a': 1}", "t: line 1 column 2" },
    { "comment", "[1 /* one */]", "t: line 1" },
    { "nan", "[NaN]", "t: line 1" },
    { "infinity", "[-Infinity]", "t: line 1" },
    { "leading zero", "[01]", "t: line 1" },
    { "integer above int64", "[9223372036854775808]", "too big integer" },
    { "real above double", "[1e999]", "real number overflow" },
    { "raw control character", "[\"a\tb\"]", "control character" },
    { "not UTF-8", "[\"\xff\"]", "unable to decode byte" },
    { "overlong", "[\"\xc0\x80\"]", "unable to decode byte" },
    { "lone surrogate", "[\"\\ud800\"]", "t: line 1" },
    { "NUL", "[\"a\\u0000b\"]", "\\u0000 is not allowed" },
    { "byte order mark", "\xef\xbb\xbf{}", "t: line 1" },
    { "too deep", "[[[\n[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]",
      "t: line 2 column 18: nested deeper than 20" },
};

Test(json, refuses_what_is_not_strict_json_and_says_where)
{
    struct capture log;

    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct json *root = NULL;

        capture_start(&log);
        cr_expect(eq(int, json_parse(refusals[i].text, strlen(refusals[i].text), "t", 20, &root),
                     -EINVAL),
                  "%s", refusals[i].name);
        cr_expect(strstr(log.last, refusals[i].says) != NULL, "%s: \"%s\"", refusals[i].name,
                  log.last);
        cr_expect(eq(int, log.lines, 1), "%s", refusals[i].name);
        cr_expect(eq(ptr, root, NULL));
    }
}

Test(json, a_try_says_the_same_and_logs_nothing)
{
    struct capture log;
    char why[256];

    capture_start(&log);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const char *says = refusals[i].says;
        struct json *root = NULL;

        cr_expect(eq(int,
                     json_try(refusals[i].text, strlen(refusals[i].text), "t", 20, &root, why,
                              sizeof(why)),
                     -EINVAL),
                  "%s", refusals[i].name);
        cr_expect(strstr(why, strncmp(says, "t: ", 3) == 0 ? says + 3 : says) != NULL, "%s: \"%s\"",
                  refusals[i].name, why);
        cr_expect(eq(ptr, root, NULL));
    }
    cr_expect(eq(int, log.lines, 0));
}

Test(json, depth_counts_brackets_outside_of_strings)
{
    struct json *root;
    char deep[41];

    memset(deep, '[', 20);
    memset(deep + 20, ']', 20);
    deep[40] = 0;
    json_close(parse(deep));
    root = parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[\", [], {}]");
    cr_expect(eq(sz, json_count(root), 3));
    json_close(root);
    json_close(NULL);
}

static const char sample[] =
    "{\"dim\": 64, \"big\": 4294967296, \"eps\": 1e-6, \"whole\": 2.0, \"tied\": true,"
    " \"name\": \"p\\u00f6cket \\ud83d\\ude00\", \"none\": null,"
    " \"rope\": {\"factor\": 16, \"b\": {\"c\": [1, [2, \"x\"]]}}, \"list\": [3, 1, 2]}";

Test(json, members_keep_file_order)
{
    static const char *const keys[] = { "dim",  "big",  "eps",  "whole", "tied",
                                        "name", "none", "rope", "list" };
    struct json *o = parse(sample);
    const struct json *list;
    int v[3];

    cr_assert(eq(sz, json_count(o), 9));
    for (size_t i = 0; i < 9; i++) {
        cr_expect(eq(str, (char *)json_key(json_at(o, i)), (char *)keys[i]));
        cr_expect(eq(ptr, (void *)json_get(o, keys[i]), (void *)json_at(o, i)));
    }
    cr_assert(eq(int, json_get_array(o, "list", &list), 0));
    for (size_t i = 0; i < 3; i++)
        cr_expect(eq(int, json_as_int(json_at(list, i), 0, 9, &v[i]), 0));
    cr_expect(v[0] == 3 && v[1] == 1 && v[2] == 2);
    cr_expect(eq(ptr, (void *)json_key(o), NULL));
    cr_expect(eq(ptr, (void *)json_key(json_at(list, 0)), NULL));
    json_close(o);
}

Test(json, getters_return_what_is_there)
{
    struct json *o = parse(sample);
    const struct json *rope;
    int64_t big = 0;
    double eps = 0, dim = 0;
    bool tied = false;
    const char *name = NULL;
    int v = 0;

    cr_expect(json_int(o, "dim", 1, 64, &v) == 0 && v == 64);
    cr_expect(json_i64(o, "big", 0, INT64_MAX, &big) == 0 && big == 4294967296);
    cr_expect(json_f64(o, "eps", &eps) == 0 && eps == 1e-6);
    cr_expect(json_f64(o, "dim", &dim) == 0 && dim == 64);
    cr_expect(json_bool(o, "tied", &tied) == 0 && tied);
    cr_expect(json_str(o, "name", &name) == 0);
    cr_expect(eq(str, (char *)name,
                 (char *)"p\xc3\xb6"
                         "cket \xf0\x9f\x98\x80"));
    cr_assert(eq(int, json_get_object(o, "rope", &rope), 0));
    cr_expect(json_int(rope, "factor", 1, 100, &v) == 0 && v == 16);
    cr_expect(json_has(o, "dim") && !json_has(o, "none") && !json_has(o, "absent"));
    cr_expect(json_is(json_get(o, "none"), JSON_IS_NULL));
    cr_expect(eq(int, (int)json_type_of(json_get(o, "whole")), JSON_IS_REAL));
    cr_expect(not(json_is(NULL, JSON_IS_NULL)));

    v = 7;
    cr_expect(json_opt_int(o, "absent", 0, 9, &v) == 0 && v == 7);
    cr_expect(json_opt_int(o, "none", 0, 9, &v) == 0 && v == 7);
    cr_expect(json_opt_int(o, "dim", 0, 99, &v) == 0 && v == 64);
    cr_expect(json_opt_str(o, "absent", &name) == 0 && strlen(name) > 0);
    json_close(o);
}

enum getter { INT, I64, F64, BOOL, STR, ARRAY, OBJECT, OPT_INT, OPT_BOOL, OPT_OBJECT };

static int get(enum getter g, const struct json *o, const char *key)
{
    const struct json *v;
    const char *s;
    int64_t n;
    double d;
    bool b;
    int i;

    switch (g) {
    case INT:
        return json_int(o, key, 0, 10, &i);
    case I64:
        return json_i64(o, key, 0, 10, &n);
    case F64:
        return json_f64(o, key, &d);
    case BOOL:
        return json_bool(o, key, &b);
    case STR:
        return json_str(o, key, &s);
    case ARRAY:
        return json_get_array(o, key, &v);
    case OBJECT:
        return json_get_object(o, key, &v);
    case OPT_INT:
        return json_opt_int(o, key, 0, 10, &i);
    case OPT_BOOL:
        return json_opt_bool(o, key, &b);
    case OPT_OBJECT:
        break;
    }
    return json_opt_object(o, key, &v);
}

static const struct {
    enum getter get;
    const char *key, *says;
} wrong[] = {
    { INT, "absent", "error: t: absent: missing" },
    { INT, "none", "error: t: none: missing" },
    { INT, "dim", "error: t: dim: 64 is not in 0 .. 10" },
    { I64, "big", "error: t: big: 4294967296 is not in 0 .. 10" },
    { INT, "whole", "error: t: whole: want an integer, got a real number" },
    { INT, "name", "error: t: name: want an integer, got a string" },
    { F64, "tied", "error: t: tied: want a number, got a boolean" },
    { BOOL, "dim", "error: t: dim: want a boolean, got an integer" },
    { STR, "list", "error: t: list: want a string, got an array" },
    { ARRAY, "rope", "error: t: rope: want an array, got an object" },
    { OBJECT, "list", "error: t: list: want an object, got an array" },
    { OPT_INT, "name", "error: t: name: want an integer, got a string" },
    { OPT_BOOL, "rope", "error: t: rope: want a boolean, got an object" },
    { OPT_OBJECT, "dim", "error: t: dim: want an object, got an integer" },
};

Test(json, errors_name_the_path)
{
    struct json *o = parse(sample);
    const struct json *deep;
    struct capture log;
    char path[64], small[8];
    int v = 5;

    capture_start(&log);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_expect(eq(int, get(wrong[i].get, o, wrong[i].key), -EINVAL), "%s", wrong[i].says);
        cr_expect(eq(str, log.last, (char *)wrong[i].says));
    }
    deep = json_at(json_at(json_get(json_get(json_get(o, "rope"), "b"), "c"), 1), 1);
    cr_expect(eq(int, json_as_int(deep, 0, 9, &v), -EINVAL));
    cr_expect(eq(str, log.last, (char *)"error: t: rope.b.c[1][1]: want an integer, got a string"));
    cr_expect(eq(int, json_int(json_get(o, "rope"), "base", 0, 1, &v), -EINVAL));
    cr_expect(eq(str, log.last, (char *)"error: t: rope.base: missing"));
    cr_expect(eq(int, json_int(json_get(o, "list"), "x", 0, 1, &v), -EINVAL));
    cr_expect(eq(str, log.last, (char *)"error: t: list: want an object, got an array"));
    cr_expect(eq(int, v, 5), "nothing is written on an error");
    json_path(deep, path, sizeof(path));
    cr_expect(eq(str, path, (char *)"t: rope.b.c[1][1]"));
    json_path(deep, small, sizeof(small));
    cr_expect(eq(str, small, (char *)"t: rope"));
    json_close(o);
}

Test(json, large_objects_are_found_by_key)
{
    size_t cap = 1 << 20, at = 0;
    char *text = malloc(cap), key[32];
    struct json *o;

    at += (size_t)snprintf(text + at, cap - at, "{");
    for (int i = 0; i < 5000; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s\"k%d\": %d", i ? "," : "", i * 7919, i);
    snprintf(text + at, cap - at, "}");
    o = parse(text);
    for (int i = 0; i < 5000; i++) {
        int v = -1;

        snprintf(key, sizeof(key), "k%d", i * 7919);
        cr_assert(json_int(o, key, 0, 5000, &v) == 0 && v == i, "%s", key);
        cr_assert(eq(str, (char *)json_key(json_at(o, (size_t)i)), key));
    }
    cr_expect(eq(ptr, (void *)json_get(o, "k1"), NULL));
    json_close(o);
    free(text);
}

Test(json, every_cut_of_a_text_is_refused)
{
    struct capture log;
    struct json *root;

    capture_start(&log);
    for (size_t n = 0; n < sizeof(sample) - 1; n++)
        cr_expect(eq(int, json_parse(sample, n, "t", 20, &root), -EINVAL), "%zu bytes", n);
    cr_expect(eq(int, json_parse(sample, sizeof(sample) - 1, "t", 20, &root), 0));
    json_close(root);
}

Test(json, reads_a_file_and_names_it)
{
    char path[] = "/tmp/tandem-json-XXXXXX", want[128];
    int fd = mkstemp(path);
    struct capture log;
    struct json *root;

    capture_start(&log);
    cr_assert(fd >= 0 && write(fd, "{\"a\":\n [1, }", 12) == 12);
    cr_expect(eq(int, json_read(path, 100, 10, &root), -EINVAL));
    snprintf(want, sizeof(want), "error: %s: line 2 column 6:", path);
    cr_expect(strncmp(log.last, want, strlen(want)) == 0, "%s", log.last);
    cr_expect(eq(int, json_read(path, 11, 10, &root), -EFBIG));
    close(fd);
    unlink(path);
    cr_expect(eq(int, json_read(path, 100, 10, &root), -ENOENT));
}

Test(json_writer, puts_commas_keys_and_escapes)
{
    struct json_writer w;
    const char *text;
    size_t n;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "a");
    json_end_array(&w);
    json_begin_array(&w, "b\"\\");
    json_put_int(&w, NULL, INT64_MIN);
    json_put_u64(&w, NULL, UINT64_MAX);
    json_begin_object(&w, NULL);
    json_put_null(&w, "n");
    json_put_bool(&w, "t", true);
    json_put_bool(&w, "f", false);
    json_end_object(&w);
    json_put_f64(&w, NULL, NAN);
    json_put_f64(&w, NULL, -INFINITY);
    json_put_f32(&w, NULL, INFINITY);
    json_end_array(&w);
    json_put_str(&w, "s", "\b\f\n\r\t\x01\x1f \x7f/\"\\\xc3\xa4");
    json_put_strn(&w, "z", "a\0b\xff\xe4\xbd", 6);
    json_put_str(&w, "e", "");
    json_end_object(&w);
    cr_assert(eq(int, json_writer_text(&w, &text, &n), 0));
    cr_expect(eq(str, (char *)text,
                 (char *)"{\"a\":[],\"b\\\"\\\\\":[-9223372036854775808,18446744073709551615,"
                         "{\"n\":null,\"t\":true,\"f\":false},null,null,null],"
                         "\"s\":\"\\b\\f\\n\\r\\t\\u0001\\u001f \x7f/\\\"\\\\\xc3\xa4\","
                         "\"z\":\"a\\u0000b\xef\xbf\xbd\xef\xbf\xbd\",\"e\":\"\"}"));
    cr_expect(eq(sz, n, strlen(text)));
    json_writer_reset(&w);
    cr_assert(eq(int, json_writer_text(&w, &text, &n), 0));
    cr_expect(eq(str, (char *)text, (char *)""));
    json_writer_free(&w);
}

/* Characters that straddle the writer's pieces, and bytes that never become characters. */
Test(json_writer, any_bytes_become_valid_json_of_the_same_text)
{
    struct json_writer w;
    unsigned state = 7;

    json_writer_init(&w);
    for (int round = 0; round < 2000; round++) {
        char bytes[400];
        size_t n = 0, len;
        const char *text;
        struct json *root;

        while (n < sizeof(bytes) - 4) {
            state = state * 1664525 + 1013904223;
            if (round % 2 == 0 || state >> 28 != 0) {
                memcpy(bytes + n, "\xf0\x9f\x98\x80", 4);
                n += 4;
            }
            bytes[n] = (char)(state >> 24 ? state >> 24 : 1);
            n += round % 2;
            n += n == 0;
        }
        json_writer_reset(&w);
        json_put_strn(&w, NULL, bytes, n);
        cr_assert(eq(int, json_writer_text(&w, &text, &len), 0));
        cr_assert(eq(int, json_parse(text, len, "t", 2, &root), 0), "%s", text);
        if (round % 2 == 0) {
            const char *back;

            cr_assert(eq(int, json_as_str(root, &back), 0));
            cr_assert(strlen(back) == n && memcmp(back, bytes, n) == 0);
        }
        json_close(root);
    }
    json_writer_free(&w);
}

Test(json_writer, numbers_read_back_as_the_same_bits)
{
    static const double values[] = { 0,       -0.0,   0.1,  1.0 / 3, 1e22,      1e-7,  DBL_MAX,
                                     DBL_MIN, 5e-324, -2.5, M_PI,    123456789, 2e300, 1e15 };
    struct json_writer w;
    const char *text;
    size_t n;

    json_writer_init(&w);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        float f = (float)values[i];

        json_writer_reset(&w);
        json_put_f64(&w, NULL, values[i]);
        cr_assert(eq(int, json_writer_text(&w, &text, &n), 0));
        cr_expect(eq(dbl, strtod(text, NULL), values[i]), "%s", text);
        if (isinf(f))
            continue;
        json_writer_reset(&w);
        json_put_f32(&w, NULL, f);
        cr_assert(eq(int, json_writer_text(&w, &text, &n), 0));
        cr_expect(eq(flt, strtof(text, NULL), f), "%s", text);
    }
    json_writer_reset(&w);
    json_put_f32(&w, NULL, 0.1f);
    cr_assert(eq(int, json_writer_text(&w, &text, &n), 0));
    cr_expect(eq(str, (char *)text, (char *)"0.1"));
    json_writer_free(&w);
}

Test(json_writer, lines_go_to_a_file_and_a_full_disk_is_reported)
{
    FILE *f = tmpfile(), *full = fopen("/dev/full", "w");
    struct json_writer w;
    char back[64] = "";

    json_writer_init(&w);
    for (int i = 0; i < 2; i++) {
        json_begin_object(&w, NULL);
        json_put_int(&w, "i", i);
        json_end_object(&w);
        cr_expect(eq(int, json_write_line(&w, f), 0));
    }
    rewind(f);
    cr_expect(eq(sz, fread(back, 1, sizeof(back) - 1, f), 16));
    cr_expect(eq(str, back, (char *)"{\"i\":0}\n{\"i\":1}\n"));
    fclose(f);
    if (full) {
        json_put_int(&w, NULL, 1);
        cr_expect(eq(int, json_write_line(&w, full), -ENOSPC));
        fclose(full);
    }
    json_writer_free(&w);
}
