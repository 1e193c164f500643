/* tokenizer_read.c turns the JSON of a tokenizer.json into the parts of a tokenizer. */
#include "src/model/tokenizer_parts.h"

#include "src/base/log.h"

#define PATH_BYTES 160

/* The split of GPT-2, which ByteLevel does itself where use_regex is on. */
#define GPT2_WORDS                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* What a component does is said by its type; a name that is not in the table is refused. */
struct component {
    const char *type;
    int (*read)(struct tokenizer *t, const struct json *o);
};

static int refuse_type(const struct json *o, const char *what, const char *type)
{
    char path[PATH_BYTES];

    return fail(-EINVAL, "%s: unknown %s `%s`", json_path(o, path, sizeof(path)), what, type);
}

static int read_component(struct tokenizer *t, const struct json *o, const char *what,
                          const struct component *table, size_t n)
{
    const char *type;
    int r = json_str(o, "type", &type);

    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].type, type) == 0)
            return table[i].read(t, o);
    return refuse_type(o, what, type);
}

static int read_list(struct tokenizer *t, const struct json *o, const char *key,
                     int (*read)(struct tokenizer *t, const struct json *o))
{
    const struct json *list;
    int r = json_get_array(o, key, &list);

    for (size_t i = 0; r >= 0 && i < json_count(list); i++)
        r = read(t, json_at(list, i));
    return r;
}

/* {"Regex": ...} or {"String": ...} */
static int read_pattern(const struct json *o, struct pattern **out)
{
    const struct json *p;
    const char *text;
    char path[PATH_BYTES];
    bool literal;
    int r = json_get_object(o, "pattern", &p);

    if (r < 0)
        return r;
    literal = json_has(p, "String");
    r = json_str(p, literal ? "String" : "Regex", &text);
    if (r < 0)
        return r;
    return pattern_open(text, literal, json_path(o, path, sizeof(path)), out);
}

/* Normalizers */

static int read_normalizer(struct tokenizer *t, const struct json *o);

/* NULL if there is no room for one more; logged. */
static struct normal *next_normal(struct tokenizer *t, const struct json *o)
{
    char path[PATH_BYTES];

    if (t->normals < STEPS_MAX)
        return &t->normal[t->normals++];
    fail(-EINVAL, "%s: more than %d normalizers", json_path(o, path, sizeof(path)), STEPS_MAX);
    return NULL;
}

static int read_text(const struct json *o, const char *key, char **out)
{
    const char *text;
    int r = json_str(o, key, &text);

    if (r < 0)
        return r;
    *out = strdup(text);
    return *out ? 0 : fail(-ENOMEM, "no memory for a normalizer");
}

static int read_form(struct tokenizer *t, const struct json *o)
{
    static const char *const forms[] = { [UNICODE_NFC] = "NFC",
                                         [UNICODE_NFD] = "NFD",
                                         [UNICODE_NFKC] = "NFKC",
                                         [UNICODE_NFKD] = "NFKD" };
    struct normal *step = next_normal(t, o);
    const char *type;
    int r = step ? json_str(o, "type", &type) : -EINVAL;

    if (r < 0)
        return r;
    step->kind = NORMAL_FORM;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(forms[i], type) == 0)
            step->form = (enum unicode_form)i;
    return 0;
}

static int read_prepend(struct tokenizer *t, const struct json *o)
{
    struct normal *step = next_normal(t, o);

    if (!step)
        return -EINVAL;
    step->kind = NORMAL_PREPEND;
    return read_text(o, "prepend", &step->text);
}

static int read_replace(struct tokenizer *t, const struct json *o)
{
    struct normal *step = next_normal(t, o);
    int r;

    if (!step)
        return -EINVAL;
    step->kind = NORMAL_REPLACE;
    r = read_pattern(o, &step->pattern);
    return r < 0 ? r : read_text(o, "content", &step->text);
}

static int read_normalizers(struct tokenizer *t, const struct json *o)
{
    return read_list(t, o, "normalizers", read_normalizer);
}

static int read_normalizer(struct tokenizer *t, const struct json *o)
{
    static const struct component table[] = {
        { "NFC", read_form },
        { "NFD", read_form },
        { "NFKC", read_form },
        { "NFKD", read_form },
        { "Prepend", read_prepend },
        { "Replace", read_replace },
        { "Sequence", read_normalizers },
    };

    return read_component(t, o, "normalizer", table, sizeof(table) / sizeof(table[0]));
}

/* Pre-tokenizers */

static int read_pre_tokenizer(struct tokenizer *t, const struct json *o);

/* Behind ByteLevel text is spelled in the byte alphabet: nothing may follow it but the merges. */
static int behind_byte_level(const struct json *o)
{
    char path[PATH_BYTES];

    return fail(-EINVAL, "%s: a pre-tokenizer behind ByteLevel", json_path(o, path, sizeof(path)));
}

/* NULL if there can be no further one; logged. */
static struct split *next_split(struct tokenizer *t, const struct json *o)
{
    char path[PATH_BYTES];

    if (t->byte_level)
        behind_byte_level(o);
    else if (t->splits == STEPS_MAX)
        fail(-EINVAL, "%s: more than %d splits", json_path(o, path, sizeof(path)), STEPS_MAX);
    else
        return &t->split[t->splits++];
    return NULL;
}

static int read_behavior(const struct json *o, enum split_behavior *out)
{
    static const char *const names[] = { [SPLIT_REMOVED] = "Removed",
                                         [SPLIT_ISOLATED] = "Isolated",
                                         [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                         [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
                                         [SPLIT_CONTIGUOUS] = "Contiguous" };
    const char *name;
    int r = json_str(o, "behavior", &name);

    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    return refuse_type(o, "behavior", name);
}

static int read_split(struct tokenizer *t, const struct json *o)
{
    struct split *s = next_split(t, o);
    int r = s ? read_pattern(o, &s->pattern) : -EINVAL;

    if (r >= 0)
        r = read_behavior(o, &s->behavior);
    return r < 0 ? r : json_opt_bool(o, "invert", &s->invert);
}

static int read_digits(struct tokenizer *t, const struct json *o)
{
    bool single = false;
    struct split *s = next_split(t, o);
    char path[PATH_BYTES];
    int r = s ? json_opt_bool(o, "individual_digits", &single) : -EINVAL;

    if (r < 0)
        return r;
    s->behavior = single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return pattern_open("\\p{N}", false, json_path(o, path, sizeof(path)), &s->pattern);
}

static int read_byte_level(struct tokenizer *t, const struct json *o)
{
    bool words = true;
    char path[PATH_BYTES];
    int r = t->byte_level ? behind_byte_level(o) : 0;

    t->byte_level = true;
    if (r >= 0)
        r = json_bool(o, "add_prefix_space", &t->prefix_space);
    if (r >= 0)
        r = json_opt_bool(o, "use_regex", &words);
    if (r < 0 || !words)
        return r;
    t->word.behavior = SPLIT_ISOLATED;
    return pattern_open(GPT2_WORDS, false, json_path(o, path, sizeof(path)), &t->word.pattern);
}

static int read_pre_tokenizers(struct tokenizer *t, const struct json *o)
{
    return read_list(t, o, "pretokenizers", read_pre_tokenizer);
}

static int read_pre_tokenizer(struct tokenizer *t, const struct json *o)
{
    static const struct component table[] = {
        { "Split", read_split },
        { "Digits", read_digits },
        { "ByteLevel", read_byte_level },
        { "Sequence", read_pre_tokenizers },
    };

    return read_component(t, o, "pre-tokenizer", table, sizeof(table) / sizeof(table[0]));
}

static int read_pre_tokenization(struct tokenizer *t, const struct json *root)
{
    const struct json *o;
    char path[PATH_BYTES];
    int r = json_get_object(root, "pre_tokenizer", &o);

    if (r >= 0)
        r = read_pre_tokenizer(t, o);
    if (r >= 0 && !t->byte_level)
        return fail(-EINVAL, "%s: no ByteLevel: not byte-level BPE",
                    json_path(o, path, sizeof(path)));
    return r;
}

/* Post-processors and decoders */

static int read_post_processor(struct tokenizer *t, const struct json *o);
static int read_decoder(struct tokenizer *t, const struct json *o);

static int read_nothing(struct tokenizer *t, const struct json *o)
{
    return 0;
}

static int add_bos(struct tokenizer *t, const struct json *template, const char *name)
{
    const struct json *tokens, *token, *ids;
    char path[PATH_BYTES];
    int id, r = json_get_object(template, "special_tokens", &tokens);

    if (r >= 0)
        r = json_get_object(tokens, name, &token);
    if (r >= 0)
        r = json_get_array(token, "ids", &ids);
    for (size_t i = 0; r >= 0 && i < json_count(ids); i++) {
        r = json_as_int(json_at(ids, i), 0, VOCAB_MAX - 1, &id);
        if (r < 0)
            return r;
        if (!vocab_token(&t->vocab, id) || t->n_bos == BOS_MAX)
            return fail(-EINVAL, "%s: %s %d", json_path(ids, path, sizeof(path)),
                        t->n_bos == BOS_MAX ? "too many tokens before the text, at"
                                            : "no token has id",
                        id);
        t->bos[t->n_bos++] = id;
    }
    return r;
}

/* Of the template for one text only what stands before $A counts: a prompt has no end to be
 * marked. */
static int read_template(struct tokenizer *t, const struct json *o)
{
    const struct json *single, *piece;
    const char *name;
    char path[PATH_BYTES];
    int r = json_get_array(o, "single", &single);

    if (r >= 0 && t->n_bos > 0)
        return fail(-EINVAL, "%s: a second template", json_path(o, path, sizeof(path)));
    for (size_t i = 0; r >= 0 && i < json_count(single); i++) {
        const struct json *entry = json_at(single, i);

        if (json_has(entry, "Sequence"))
            return 0;
        r = json_get_object(entry, "SpecialToken", &piece);
        if (r >= 0)
            r = json_str(piece, "id", &name);
        if (r >= 0)
            r = add_bos(t, o, name);
    }
    if (r < 0)
        return r;
    return fail(-EINVAL, "%s: no Sequence in the template", json_path(single, path, sizeof(path)));
}

static int read_post_processors(struct tokenizer *t, const struct json *o)
{
    return read_list(t, o, "processors", read_post_processor);
}

static int read_post_processor(struct tokenizer *t, const struct json *o)
{
    static const struct component table[] = {
        { "ByteLevel", read_nothing }, /* moves offsets, not ids */
        { "TemplateProcessing", read_template },
        { "Sequence", read_post_processors },
    };

    return read_component(t, o, "post-processor", table, sizeof(table) / sizeof(table[0]));
}

static int read_decoders(struct tokenizer *t, const struct json *o)
{
    return read_list(t, o, "decoders", read_decoder);
}

static int read_decoder(struct tokenizer *t, const struct json *o)
{
    static const struct component table[] = {
        { "ByteLevel", read_nothing }, /* what vocab.c does with every token */
        { "Sequence", read_decoders },
    };

    return read_component(t, o, "decoder", table, sizeof(table) / sizeof(table[0]));
}

/* Model and added tokens */

static int read_vocab(struct tokenizer *t, const struct json *model)
{
    const struct json *vocab;
    char path[PATH_BYTES];
    int r = json_get_object(model, "vocab", &vocab);

    if (r < 0)
        return r;
    json_path(vocab, path, sizeof(path));
    for (size_t i = 0; r >= 0 && i < json_count(vocab); i++) {
        const struct json *entry = json_at(vocab, i);
        int64_t id;

        r = json_as_i64(entry, INT64_MIN, INT64_MAX, &id);
        if (r >= 0)
            r = vocab_put(&t->vocab, json_key(entry), id, 0, path);
    }
    return r;
}

static int refuse_affix(const struct json *model, const char *key)
{
    const char *affix = "";
    char path[PATH_BYTES];
    int r = json_opt_str(model, key, &affix);

    if (r < 0 || *affix == '\0')
        return r;
    return fail(-EINVAL, "%s: %s `%s` is not byte-level BPE", json_path(model, path, sizeof(path)),
                key, affix);
}

/* unk_token, fuse_unk and byte_fallback say what happens to bytes without a token; here all have
 * one. */
static int check_model(const struct json *model)
{
    const char *type = "BPE"; /* files of the first years leave it out */
    double dropout = 0;
    char path[PATH_BYTES];
    int r = json_opt_str(model, "type", &type);

    if (r < 0)
        return r;
    if (strcmp(type, "BPE") != 0)
        return refuse_type(model, "model", type);
    r = json_opt_f64(model, "dropout", &dropout);
    if (r >= 0 && dropout != 0)
        return fail(-EINVAL, "%s: dropout %g", json_path(model, path, sizeof(path)), dropout);
    if (r >= 0)
        r = refuse_affix(model, "continuing_subword_prefix");
    if (r >= 0)
        r = refuse_affix(model, "end_of_word_suffix");
    return r;
}

static int put_added(struct tokenizer *t, const struct json *entry, struct added_token token,
                     const char *content, bool normalized)
{
    struct text form = { 0 }, room = { 0 };
    struct pattern_run run;
    char path[PATH_BYTES];
    int r;

    json_path(entry, path, sizeof(path));
    if (!normalized || t->normals == 0)
        return added_put(normalized ? &t->normalized : &t->raw, token, content, strlen(content),
                         path);
    r = pattern_run_open(&run);
    if (r < 0)
        return r;
    pattern_run_budget(&run, INT64_C(1000000000));
    r = tokenizer_normalize(t, &run, content, strlen(content), &form, &room);
    if (r >= 0)
        r = added_put(&t->normalized, token, form.s, form.bytes, path);
    pattern_run_close(&run);
    text_free(&form);
    text_free(&room);
    return r;
}

static int read_added_token(struct tokenizer *t, const struct json *entry)
{
    bool special = false, normalized;
    struct added_token token = { 0 };
    const char *content;
    char path[PATH_BYTES];
    int64_t id;
    size_t n;
    int r = json_str(entry, "content", &content);

    if (r >= 0)
        r = json_i64(entry, "id", INT64_MIN, INT64_MAX, &id);
    if (r >= 0)
        r = json_opt_bool(entry, "special", &special);
    normalized = !special;
    if (r >= 0)
        r = json_opt_bool(entry, "normalized", &normalized);
    if (r >= 0)
        r = json_opt_bool(entry, "single_word", &token.single_word);
    if (r >= 0)
        r = json_opt_bool(entry, "lstrip", &token.lstrip);
    if (r >= 0)
        r = json_opt_bool(entry, "rstrip", &token.rstrip);
    if (r < 0)
        return r;
    n = strlen(content);
    token.marker = special || (n > 2 && content[0] == '<' && content[n - 1] == '>');
    r = vocab_put(&t->vocab, content, id,
                  TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0) | (token.marker ? TOKEN_MARKER : 0),
                  json_path(entry, path, sizeof(path)));
    if (r < 0)
        return r;
    token.id = (int32_t)id;
    return put_added(t, entry, token, content, normalized);
}

static int read_added(struct tokenizer *t, const struct json *root)
{
    const struct json *list = NULL;
    int r = json_opt_array(root, "added_tokens", &list);

    for (size_t i = 0; r >= 0 && list && i < json_count(list); i++)
        r = read_added_token(t, json_at(list, i));
    added_sort(&t->raw);
    added_sort(&t->normalized);
    return r;
}

static int read_model(struct tokenizer *t, const struct json *root)
{
    const struct json *model, *merges;
    bool whole_words = false;
    int r = json_get_object(root, "model", &model);

    if (r >= 0)
        r = check_model(model);
    if (r >= 0)
        r = read_vocab(t, model);
    if (r >= 0)
        r = read_added(t, root);
    if (r >= 0)
        r = json_get_array(model, "merges", &merges);
    if (r >= 0)
        r = json_opt_bool(model, "ignore_merges", &whole_words);
    return r < 0 ? r : bpe_open(merges, &t->vocab, whole_words, &t->bpe);
}

static int read_optional(struct tokenizer *t, const struct json *root, const char *key,
                         int (*read)(struct tokenizer *t, const struct json *o))
{
    const struct json *o = NULL;
    int r = json_opt_object(root, key, &o);

    return r < 0 || !o ? r : read(t, o);
}

int tokenizer_read(struct tokenizer *t, const struct json *root)
{
    const struct json *decoder;
    int r = read_optional(t, root, "normalizer", read_normalizer);

    if (r >= 0)
        r = read_model(t, root);
    if (r >= 0)
        r = read_pre_tokenization(t, root);
    if (r >= 0)
        r = read_optional(t, root, "post_processor", read_post_processor);
    if (r >= 0)
        r = json_get_object(root, "decoder", &decoder);
    return r < 0 ? r : read_decoder(t, decoder);
}
