/* json_writer.c owns the text that a struct json_writer builds; json.c reads, this writes. */
#include "src/base/json.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/base/utf8.h"

void json_writer_init(struct json_writer *w)
{
    memset(w, 0, sizeof(*w));
}

void json_writer_reset(struct json_writer *w)
{
    w->bytes = 0;
    w->comma = 0;
    w->depth = 0;
    w->err = 0;
}

void json_writer_free(struct json_writer *w)
{
    free(w->text);
    json_writer_init(w);
}

static void put(struct json_writer *w, const char *s, size_t bytes)
{
    if (w->err < 0)
        return;
    if (w->cap - w->bytes <= bytes) { /* one byte stays free for the NUL or the newline */
        size_t cap = w->cap ? w->cap : 256;
        char *text;

        while (cap - w->bytes <= bytes)
            cap *= 2;
        text = realloc(w->text, cap);
        if (!text) {
            w->err = fail(-ENOMEM, "json: no memory for %zu bytes", cap);
            return;
        }
        w->text = text;
        w->cap = cap;
    }
    memcpy(w->text + w->bytes, s, bytes);
    w->bytes += bytes;
}

static void puts_raw(struct json_writer *w, const char *s)
{
    put(w, s, strlen(s));
}

static void put_escape(struct json_writer *w, unsigned char c)
{
    static const char short_form[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char text[8];

    for (const char *p = short_form; *p; p += 2)
        if ((unsigned char)p[0] == c) {
            put(w, (const char[]){ '\\', p[1] }, 2);
            return;
        }
    snprintf(text, sizeof(text), "\\u%04x", c);
    puts_raw(w, text);
}

/* Bytes that are valid UTF-8. */
static void put_chars(struct json_writer *w, const char *s, size_t bytes)
{
    size_t from = 0;

    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        put(w, s + from, i - from);
        put_escape(w, c);
        from = i + 1;
    }
    put(w, s + from, bytes - from);
}

static void put_string(struct json_writer *w, const char *s, size_t bytes)
{
    char fixed[3 * 128];
    size_t used, n;

    put(w, "\"", 1);
    while (bytes > 0) {
        size_t piece = bytes < 128 ? bytes : 128;

        n = utf8_repair(s, piece, piece == bytes, fixed, &used);
        put_chars(w, fixed, n);
        s += used;
        bytes -= used;
    }
    put(w, "\"", 1);
}

/* What stands before any value: the comma, and the name of a member. */
static void open_value(struct json_writer *w, const char *key)
{
    uint64_t bit = UINT64_C(1) << w->depth;

    if (w->comma & bit)
        put(w, ",", 1);
    w->comma |= bit;
    if (key) {
        put_string(w, key, strlen(key));
        put(w, ":", 1);
    }
}

static void begin(struct json_writer *w, const char *key, const char *bracket)
{
    open_value(w, key);
    puts_raw(w, bracket);
    assert(w->depth < JSON_DEPTH_MAX);
    w->depth++;
    w->comma &= ~(UINT64_C(1) << w->depth);
}

static void end(struct json_writer *w, const char *bracket)
{
    assert(w->depth > 0);
    w->depth--;
    puts_raw(w, bracket);
}

void json_begin_object(struct json_writer *w, const char *key)
{
    begin(w, key, "{");
}

void json_end_object(struct json_writer *w)
{
    end(w, "}");
}

void json_begin_array(struct json_writer *w, const char *key)
{
    begin(w, key, "[");
}

void json_end_array(struct json_writer *w)
{
    end(w, "]");
}

static void put_word(struct json_writer *w, const char *key, const char *word)
{
    open_value(w, key);
    puts_raw(w, word);
}

void json_put_null(struct json_writer *w, const char *key)
{
    put_word(w, key, "null");
}

void json_put_bool(struct json_writer *w, const char *key, bool v)
{
    put_word(w, key, v ? "true" : "false");
}

void json_put_int(struct json_writer *w, const char *key, int64_t v)
{
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)v);
    put_word(w, key, text);
}

void json_put_u64(struct json_writer *w, const char *key, uint64_t v)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    put_word(w, key, text);
}

/* A locale may have put a comma where JSON wants a point. */
static void put_number(struct json_writer *w, const char *key, char *text)
{
    char *comma = strchr(text, ',');

    if (comma)
        *comma = '.';
    put_word(w, key, text);
}

void json_put_f64(struct json_writer *w, const char *key, double v)
{
    char text[40];

    if (!isfinite(v)) {
        json_put_null(w, key);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    put_number(w, key, text);
}

void json_put_f32(struct json_writer *w, const char *key, float v)
{
    char text[40];

    if (!isfinite(v)) {
        json_put_null(w, key);
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    put_number(w, key, text);
}

void json_put_str(struct json_writer *w, const char *key, const char *s)
{
    json_put_strn(w, key, s, strlen(s));
}

void json_put_strn(struct json_writer *w, const char *key, const char *s, size_t bytes)
{
    open_value(w, key);
    put_string(w, s, bytes);
}

int json_writer_text(struct json_writer *w, const char **text, size_t *bytes)
{
    put(w, "", 0); /* a text of no byte needs a buffer too */
    if (w->err < 0)
        return w->err;
    w->text[w->bytes] = 0;
    *text = w->text;
    *bytes = w->bytes;
    return 0;
}

int json_write_line(struct json_writer *w, FILE *f)
{
    int r;

    put(w, "\n", 1);
    r = w->err;
    if (r == 0 && (fwrite(w->text, 1, w->bytes, f) != w->bytes || fflush(f) != 0))
        r = errno ? -errno : -EIO;
    json_writer_reset(w);
    return r;
}
