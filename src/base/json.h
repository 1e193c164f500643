/* json - strict reading and always valid writing of JSON; the one home of the JSON library.
 *
 * A parsed text is a tree of struct json. Every value knows where it stands, so an error names the
 * file and the path: `config.json: rope_scaling.factor: want a number, got a string`.
 *
 * Strict: UTF-8, no duplicate keys, no NUL in strings, nothing behind the value, integers within
 * int64.
 */
#ifndef TANDEM_BASE_JSON_H
#define TANDEM_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum json_type {
    JSON_IS_NULL,
    JSON_IS_BOOL,
    JSON_IS_INT,
    JSON_IS_REAL,
    JSON_IS_STRING,
    JSON_IS_ARRAY,
    JSON_IS_OBJECT
};

struct json;

/* json_parse - read one value from bytes at text. name (a file name, "request", ...) begins every
 * message.
 *
 * in, out  max_depth: how deep arrays and objects may nest, 1 .. 1000; text is not kept
 * errors   -EINVAL with name, line and column; -ENOMEM
 * owns     *out is the root: json_close frees the whole tree, values and strings taken from it
 *          included
 */
int json_parse(const char *text, size_t bytes, const char *name, int max_depth, struct json **out);

/* json_try - json_parse that logs nothing: the line and column and what is wrong there go to why.
 * For texts of which some are expected to be broken.
 */
int json_try(const char *text, size_t bytes, const char *name, int max_depth, struct json **out,
             char *why, size_t cap);

/* json_read - json_parse of a regular file of at most max_bytes; errors as file_read and
 * json_parse.
 */
int json_read(const char *path, size_t max_bytes, int max_depth, struct json **out);

void json_close(struct json *root);

/* What a value is. Nothing here fails. */
enum json_type json_type_of(const struct json *v);
bool json_is(const struct json *v, enum json_type type); /* false for v == NULL */

/* json_path - "name: path.to.value" or "name: path[3]" into buf, cut to cap; returns buf. For
 * messages.
 */
const char *json_path(const struct json *v, char *buf, size_t cap);

/* Arrays and objects, in file order. json_count is 0 for other types; json_at wants 0 <= i <
 * json_count. json_key is the name of a member, NULL for the root and for elements of arrays.
 */
size_t json_count(const struct json *v);
const struct json *json_at(const struct json *v, size_t i);
const char *json_key(const struct json *v);

/* json_get - the member named key, NULL if there is none or o is not an object. */
const struct json *json_get(const struct json *o, const char *key);

/* json_has - there is such a member and it is not null. */
bool json_has(const struct json *o, const char *key);

/* json_as_* - the value itself, checked: wrong type or out of range is -EINVAL, logged with the
 * path.
 *
 *   int, i64   an integer in lo .. hi; a real is refused even if whole
 *   f64        an integer or a real
 *   str        NUL-terminated, borrowed from the tree
 */
int json_as_int(const struct json *v, int lo, int hi, int *out);
int json_as_i64(const struct json *v, int64_t lo, int64_t hi, int64_t *out);
int json_as_f64(const struct json *v, double *out);
int json_as_bool(const struct json *v, bool *out);
int json_as_str(const struct json *v, const char **out);

/* json_int ... - the member named key of object o, which must be there; errors as json_as_*, and
 * -EINVAL `missing` with the path if it is absent or null.
 */
int json_int(const struct json *o, const char *key, int lo, int hi, int *out);
int json_i64(const struct json *o, const char *key, int64_t lo, int64_t hi, int64_t *out);
int json_f64(const struct json *o, const char *key, double *out);
int json_bool(const struct json *o, const char *key, bool *out);
int json_str(const struct json *o, const char *key, const char **out);
int json_get_array(const struct json *o, const char *key, const struct json **out);
int json_get_object(const struct json *o, const char *key, const struct json **out);

/* json_opt_* - the same, but absent or null is fine and leaves *out as the caller set it. */
int json_opt_int(const struct json *o, const char *key, int lo, int hi, int *out);
int json_opt_f64(const struct json *o, const char *key, double *out);
int json_opt_bool(const struct json *o, const char *key, bool *out);
int json_opt_str(const struct json *o, const char *key, const char **out);
int json_opt_array(const struct json *o, const char *key, const struct json **out);
int json_opt_object(const struct json *o, const char *key, const struct json **out);

/* struct json_writer - builds one JSON text in memory; commas, colons and escapes are its own
 * business.
 *
 *     struct json_writer w;
 *     json_writer_init(&w);
 *     json_begin_object(&w, NULL);
 *     json_put_int(&w, "round", 812);
 *     json_begin_array(&w, "accept");
 *     json_put_f64(&w, NULL, 0.5);
 *     json_end_array(&w);
 *     json_end_object(&w);
 *     r = json_write_line(&w, file);
 *
 * key is the member's name inside an object and NULL elsewhere. The output is always valid UTF-8
 * JSON: bytes that are not UTF-8 become U+FFFD, a real that is not finite becomes null, reals have
 * digits enough to read back as the same bits.
 *
 * errors   kept: the first one (-ENOMEM) makes the calls that follow do nothing, json_writer_text
 *          and json_write_line return it
 * owns     the buffer, kept across resets, freed by json_writer_free
 */
struct json_writer {
    char *text;
    size_t bytes, cap;
    uint64_t comma; /* bit d: something was written at depth d */
    int depth;
    int err;
};

#define JSON_DEPTH_MAX 63

void json_writer_init(struct json_writer *w);
void json_writer_reset(struct json_writer *w); /* start a new text, forget the error */
void json_writer_free(struct json_writer *w);

void json_begin_object(struct json_writer *w, const char *key);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w, const char *key);
void json_end_array(struct json_writer *w);
void json_put_null(struct json_writer *w, const char *key);
void json_put_bool(struct json_writer *w, const char *key, bool v);
void json_put_int(struct json_writer *w, const char *key, int64_t v);
void json_put_u64(struct json_writer *w, const char *key, uint64_t v);
void json_put_f64(struct json_writer *w, const char *key, double v);
void json_put_f32(struct json_writer *w, const char *key, float v); /* digits enough for a float */
void json_put_str(struct json_writer *w, const char *key, const char *s);
void json_put_strn(struct json_writer *w, const char *key, const char *s, size_t bytes);

/* json_writer_text - the text so far, NUL-terminated and borrowed until the next call; 0 or the
 * kept error.
 */
int json_writer_text(struct json_writer *w, const char **text, size_t *bytes);

/* json_write_line - the whole text and a newline to f, flushed, then reset.
 * errors   the kept error, or the errno of the write, unlogged: the caller knows the file's name
 */
int json_write_line(struct json_writer *w, FILE *f);

#endif
