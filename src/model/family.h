/* family - what a model is: its config, weights, states and forward pass, behind one table.
 *
 * Implementers: family_deepseek_v41.c, family_dense.c. A model object is made from a config alone;
 * pack_bind over its weights and model ready give it tensors.
 *
 *   open(config) -> split(ranks) -> states, weights -> [pack_write | pack_bind -> ready] -> forward
 *   ... -> close
 */
#ifndef TANDEM_MODEL_FAMILY_H
#define TANDEM_MODEL_FAMILY_H

#include "src/model/pack.h"
#include "src/model/slot.h"
#include "src/model/walk.h"
#include "src/model/window.h"

#include <stdbool.h>
#include <stddef.h>

struct exec;
struct json;
struct model;
struct row_store;
struct tokenizer;

/* config_above_0 - a key whose value is finite and above 0, as a float.
 * errors   -EINVAL naming it */
int config_above_0(const struct json *o, const char *key, float *out);

#define FAMILY_ENDS_MAX 4

/* config_ends - eos_token_id: a token or a list of at most max; *n is 0 if it is null or not there.
 * errors   -EINVAL naming what is no token of the vocabulary, or how many there are */
int config_ends(const struct json *o, int vocab, int max, int *end, int *n);

struct family_ops {
    const char *name;

    /* open - read a config.json; every key that changes the arithmetic is understood or refused by
     * name.
     * errors   -EINVAL */
    int (*open)(const struct json *config, bool cache_quant, struct model **out);

    /* split - fix the rank; dimensions that cannot be cut into ranks are refused by name.
     * errors   -EINVAL */
    int (*split)(struct model *m, int rank, int ranks);

    /* derive - what packs carry besides weights (the Engram token map), made from the tokenizer;
     * the blob is the model's. 1 if there is nothing to carry. t NULL: a made-up one, for weights
     * that are. */
    int (*derive)(struct model *m, const struct tokenizer *t, struct pack_blob *out);

    void (*states)(struct model *m, struct state_list *l);
    void (*weights)(void *m, struct walk *w);

    /* ready - after bind: device tables and what was derived while packing.
     * errors   -ENOMEM, -EINVAL */
    int (*ready)(struct model *m, struct device *d, const struct pack *p);

    /* stage - host work that a window's ids allow: which n-gram rows it is owed (window_owe).
     * Before window_upload.
     * errors   -EINVAL a token that is none; -ENOMEM */
    int (*stage)(struct model *m, const struct slot_pool *p, struct row_store *s, struct window *w);

    /* warm - a hint: the n-gram rows of tok[from .. n - 1], if tok[0 .. n - 1] come next in the
     * slot, begin to be read.
     * errors   of row_store warm; what cannot be read is said when a window needs it */
    int (*warm)(struct model *m, const struct slot_pool *p, struct row_store *s, int slot,
                const int32_t *tok, int from, int n);

    /* forward - logits (if w->head) and taps of the window's rows; states of the rows are written.
     * What w->tapped queues has run, or stands in queue order, when the pass has been queued.
     * rows     a row's result depends on its slot's rows up to itself alone, bit for bit
     * ranks    every rank computes the same streams; logits are this rank's share of the vocabulary
     * order    queue order; may be captured; no checks inside */
    void (*forward)(struct model *m, struct exec *x, const struct slot_pool *p, struct window *w);

    void (*close)(struct model *m);
};

/* What a next-token head (draft_mtp.c) needs of the model behind it: one more layer of the family's
 * kind. Its states are positions like the model's own; rows before the slot's floor are not
 * read. */
struct mtp_ops {
    int sites; /* exchanges of `layer` */
    void (*states)(struct model *m, struct state_list *l);
    /* weights - those of the layer, and the names of the head's own: "model.layers.2." */
    void (*weights)(struct model *m, struct walk *w);
    void (*prefix)(const struct model *m, char *out, size_t cap);
    /* keys - what rows h [rows][dim] leave for later rows; layer - the same, and the layer's output
     * in place of h. order: queue order; may be captured */
    void (*keys)(struct model *m, struct exec *x, const struct slot_pool *p,
                 const struct row_info *info, int rows, const float *h);
    void (*layer)(struct model *m, struct exec *x, const struct slot_pool *p,
                  const struct row_info *info, int rows, int site, float *h);
};

struct model {
    const struct family_ops *ops;
    bool cache_quant;
    bool bf16_sums; /* partial sums are rounded to bf16 on the wire, unless numerics is fp32 */
    int rank, ranks;
    int width_unit; /* widths are cut at multiples of this (walk.h); 0 is 1. Set before split */
    int vocab, vocab_share, vocab_first; /* this rank's logits are ids first .. first + share - 1 */
    int dim, layers, context_max;
    int tap_cols; /* values of a row of taps; 0: none */
    int tables;   /* n-gram tables */
    int engram_ld[WINDOW_TABLES];
    int bos, eos[FAMILY_ENDS_MAX], n_eos;
    /* exchange sites the forward uses: 0 .. sites - 1; drafters number theirs behind them */
    int sites;

    /* what drafters share with the model */
    const struct table *embed;
    const struct mat *head;
    /* NULL: no next-token head; taps are the last hidden rows otherwise */
    const struct mtp_ops *mtp;
    float eps; /* of its norms */
};

/* family_find - by the `model_type` (or architecture) of a config.json.
 * errors   -EINVAL naming the type and what is supported */
int family_find(const struct json *config, const struct family_ops **out);

/* family_named - by the family name that a pack carries.   errors   -EINVAL */
int family_named(const char *name, const struct family_ops **out);

/* model_check_head - after bind: the head that is here is the one that split has counted with.
 * errors   -EINVAL */
int model_check_head(const struct model *m);

/* model_widths - the vocabulary shares of all ranks: width[r] for r < ranks; returns the widest. */
int model_widths(const struct model *m, int width[RANKS_MAX]);

#endif
