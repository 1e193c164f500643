/* checkpoint.c owns the way from the name of a checkpoint to its texts and weights. */
#include "src/rank/checkpoint.h"

#include "src/base/hash.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/draft/drafter.h"
#include "src/model/family.h"
#include "src/model/source.h"
#include "src/model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_BYTES ((size_t)16 << 20)
#define SYNTH "synth"
#define SYNTH_SEED 1
#define SYNTH_FORMAT "bf16"

static const char *const text_names[TEXTS] = { "config.json", "tokenizer.json",
                                               "generation_config.json" };

/* ---- names ------------------------------------------------------------------------------- */

/* "synth:X", "synth+fp8:X": the format's word, empty for the first; NULL for another name. */
static const char *format_word(const char *model, size_t *len)
{
    size_t prefix = strlen(SYNTH);
    const char *colon = strchr(model, ':');

    if (strncmp(model, SYNTH, prefix) != 0 || !colon ||
        (model[prefix] != '+' && model + prefix != colon))
        return NULL;
    *len = model[prefix] == '+' ? (size_t)(colon - model) - prefix - 1 : 0;
    return model + prefix + (model[prefix] == '+');
}

const char *checkpoint_folder(const char *model, bool *made_up)
{
    size_t len;

    *made_up = format_word(model, &len) != NULL;
    return *made_up ? strchr(model, ':') + 1 : model;
}

static int read_scheme(struct checkpoint *c)
{
    char word[64] = SYNTH_FORMAT;
    size_t len = 0;
    const char *at = format_word(c->set.model, &len);

    if (len >= sizeof(word))
        return fail(-EINVAL, "%s: no format has so long a name", c->set.model);
    if (len > 0)
        snprintf(word, sizeof(word), "%.*s", (int)len, at);
    return scheme_parse(word, &c->scheme);
}

/* ---- texts ------------------------------------------------------------------------------- */

/* A tokenizer whose tokens are bytes, in the letters that byte-level vocabularies have for them. */
static int byte_tokenizer(char **text, size_t *bytes)
{
    struct json_writer w;
    const char *made;
    int other = 256, r;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_put_str(&w, "version", "1.0");
    json_begin_array(&w, "added_tokens");
    json_end_array(&w);
    json_put_null(&w, "normalizer");
    json_begin_object(&w, "pre_tokenizer");
    json_put_str(&w, "type", "ByteLevel");
    json_put_bool(&w, "add_prefix_space", false);
    json_put_bool(&w, "trim_offsets", true);
    json_put_bool(&w, "use_regex", true);
    json_end_object(&w);
    json_put_null(&w, "post_processor");
    json_begin_object(&w, "decoder");
    json_put_str(&w, "type", "ByteLevel");
    json_end_object(&w);
    json_begin_object(&w, "model");
    json_put_str(&w, "type", "BPE");
    json_begin_object(&w, "vocab");
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned c = plain ? (unsigned)b : (unsigned)other++;
        char letter[3] = { (char)c };

        if (c >= 0x80) {
            letter[0] = (char)(0xc0 | c >> 6);
            letter[1] = (char)(0x80 | (c & 0x3f));
        }
        json_put_int(&w, letter, b);
    }
    json_end_object(&w);
    json_begin_array(&w, "merges");
    json_end_array(&w);
    json_end_object(&w);
    json_end_object(&w);
    r = json_writer_text(&w, &made, bytes);
    *text = r == 0 ? strdup(made) : NULL;
    json_writer_free(&w);
    return *text ? 0 : fail(-ENOMEM, "tokenizer: no memory");
}

int checkpoint_tokenizer(const char *folder, bool made_up, char **text, size_t *bytes)
{
    char path[PATH_CAP];
    int r = path_join(path, sizeof(path), folder, text_names[TEXT_TOKENIZER]);

    if (r < 0)
        return r;
    if (made_up && access(path, F_OK) != 0)
        return byte_tokenizer(text, bytes);
    return file_read(path, TOKENIZER_JSON_MAX, text, bytes);
}

static int read_text(struct checkpoint *c, int i)
{
    char path[PATH_CAP];
    int r;

    if (i == TEXT_TOKENIZER)
        return checkpoint_tokenizer(c->folder, c->synth, &c->text[i], &c->bytes[i]);
    r = path_join(path, sizeof(path), c->folder, text_names[i]);
    if (r < 0 || (i != TEXT_CONFIG && access(path, F_OK) != 0))
        return r;
    return file_read(path, CONFIG_BYTES, &c->text[i], &c->bytes[i]);
}

static int read_texts(struct checkpoint *c)
{
    int r = 0;

    for (int i = 0; i < TEXTS && r == 0; i++) {
        r = read_text(c, i);
        if (r == 0 && c->text[i])
            c->spec.blobs[i] = (struct pack_blob){ text_names[i], c->text[i], c->bytes[i] };
    }
    return r;
}

/* What a model derives from its tokenizer while packing stands behind the texts. Nothing can be
 * derived from bytes: a made-up checkpoint without a tokenizer makes that up too.
 */
static int add_derived(struct checkpoint *c)
{
    struct model *m = c->plan.model;
    char path[PATH_CAP];
    int i = 0, r = path_join(path, sizeof(path), c->folder, text_names[TEXT_TOKENIZER]);

    if (r < 0)
        return r;
    log_about(c->folder);
    r = tokenizer_open(c->text[TEXT_TOKENIZER], c->bytes[TEXT_TOKENIZER], "tokenizer.json",
                       &c->tok);
    log_about(NULL);
    if (r < 0)
        return r;
    while (c->spec.blobs[i].name)
        i++;
    r = m->ops->derive(m, c->synth && access(path, F_OK) != 0 ? NULL : c->tok, &c->spec.blobs[i]);
    return r < 0 ? r : 0;
}

/* ---- digests ----------------------------------------------------------------------------- */

/* A made-up checkpoint is its format and its texts: nothing else can change. */
static int digest_texts(struct checkpoint *c)
{
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add(s, SYNTH, sizeof(SYNTH));
    for (int i = 0; i < TEXTS; i++)
        if (c->text[i])
            sha256_add(s, c->text[i], c->bytes[i] + 1);
    sha256_add(s, &c->scheme.dtype, sizeof(c->scheme.dtype));
    sha256_add(s, &c->scheme.experts, sizeof(c->scheme.experts));
    sha256_add(s, &c->scheme.q, sizeof(c->scheme.q));
    sha256_add(s, &c->scheme.by_part, sizeof(c->scheme.by_part));
    r = sha256_end(s, c->spec.source_digest);
    sha256_close(s);
    return r;
}

/* Names, sizes and times of the files beside the folder, on top of the folder's digest. */
static int digest_extra(struct checkpoint *c)
{
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add(s, c->spec.source_digest, SHA256_BYTES);
    for (int i = 0; i < c->set.n_extra && r == 0; i++) {
        struct stat st;

        if (stat(c->set.extra[i], &st) < 0) {
            r = fail(-errno, "%s: %s", c->set.extra[i], strerror(errno));
        } else {
            int64_t when[3] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };

            sha256_add(s, c->set.extra[i], strlen(c->set.extra[i]) + 1);
            sha256_add(s, when, sizeof(when));
        }
    }
    if (r == 0)
        r = sha256_end(s, c->spec.source_digest);
    sha256_close(s);
    return r;
}

/* Packs of rounded weights are no packs of what is stored. */
static int digest_rounding(uint8_t digest[SHA256_BYTES])
{
    static const char what[] = "mixes bf16";
    struct sha256 *s;
    int r = sha256_open(&s);

    if (r < 0)
        return r;
    sha256_add(s, digest, SHA256_BYTES);
    sha256_add(s, what, sizeof(what));
    r = sha256_end(s, digest);
    sha256_close(s);
    return r;
}

static int digest(struct checkpoint *c)
{
    int r = c->synth ? digest_texts(c) : source_digest(c->folder, c->spec.source_digest);

    if (r == 0 && c->set.n_extra > 0)
        r = digest_extra(c);
    return r == 0 && c->set.round_mixes ? digest_rounding(c->spec.source_digest) : r;
}

/* ---- open -------------------------------------------------------------------------------- */

int checkpoint_open(const struct checkpoint_settings *s, enum exit_step *step,
                    struct checkpoint *out)
{
    struct checkpoint c = { .set = *s };
    int r;

    *step = STEP_DATA;
    c.folder = checkpoint_folder(s->model, &c.synth);
    r = c.synth ? read_scheme(&c) : 0;
    if (r == 0 && c.synth && s->n_extra > 0)
        r = fail(-EINVAL, "%s: a made-up checkpoint has no files beside it", s->model);
    if (r == 0)
        r = read_texts(&c);
    if (r == 0) {
        log_about(c.folder);
        r = blueprint_open(c.text[TEXT_CONFIG], c.bytes[TEXT_CONFIG], NULL, true, s->rank, s->ranks,
                           1, step, &c.plan);
        log_about(NULL);
    }
    if (r == 0)
        r = digest(&c);
    if (r < 0) {
        checkpoint_close(&c);
        return r;
    }
    c.spec.family = c.plan.model->ops->name;
    c.spec.n_parts = BLUEPRINT_PARTS;
    c.spec.needs = c.plan.drafter->needs;
    c.spec.rank = s->rank;
    c.spec.ranks = s->ranks;
    c.spec.layouts = s->layouts ? s->layouts : PACK_CPU;
    c.spec.whole_experts = s->whole_experts;
    c.spec.link_rows = s->link_rows;
    *out = c;
    out->spec.parts = out->plan.part;
    return 0;
}

int checkpoint_source(struct checkpoint *c)
{
    int r = add_derived(c);

    if (r < 0)
        return r;
    r = c->synth ? source_synth_open_scheme(SYNTH_SEED, &c->scheme, &c->source)
                 : source_hf_open_with(c->folder, c->set.extra, c->set.n_extra, &c->source);
    return r == 0 && c->set.round_mixes ? source_mixes_open(c->source, &c->source) : r;
}

/* What is wrong in a model is nonsense, whatever the file: a missing tensor is no missing file.
 * Other errors are of files that are read or written. */
int checkpoint_failure(const struct checkpoint *c, int r, enum exit_step *step)
{
    if (r == -ENOENT)
        r = -EINVAL;
    if (r < 0 && r != -EINVAL && r != -EBADMSG && !(c->source && c->source->failed))
        *step = STEP_WRITE;
    return r;
}

void checkpoint_close(struct checkpoint *c)
{
    if (c->source)
        c->source->ops->close(c->source);
    tokenizer_close(c->tok);
    blueprint_close(&c->plan);
    for (int i = 0; i < TEXTS; i++)
        free(c->text[i]);
}
