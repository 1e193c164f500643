/* tokenizer_parts - what a tokenizer is made of; shared by its reader (tokenizer_read.c) and its
 * use (tokenizer.c), and by nobody else.
 */
#ifndef TANDEM_MODEL_TOKENIZER_PARTS_H
#define TANDEM_MODEL_TOKENIZER_PARTS_H

#include "src/base/json.h"
#include "src/model/added.h"
#include "src/model/bpe.h"
#include "src/model/pattern.h"
#include "src/model/tokenizer.h"
#include "src/model/unicode.h"

#define STEPS_MAX 16 /* normalizers, splits */
#define BOS_MAX 8

enum normal_kind { NORMAL_FORM, NORMAL_PREPEND, NORMAL_REPLACE };

/* One normalizer. */
struct normal {
    enum normal_kind kind;
    enum unicode_form form;  /* NORMAL_FORM */
    struct pattern *pattern; /* NORMAL_REPLACE */
    char *text;              /* what is prepended or put in place */
};

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

/* One pre-tokenizer before ByteLevel. */
struct split {
    struct pattern *pattern;
    enum split_behavior behavior;
    bool invert; /* what lies between the matches counts as the matches */
};

struct tokenizer {
    struct vocab vocab;
    struct bpe *bpe;
    struct added_set raw;        /* added tokens found in the text as it came, */
    struct added_set normalized; /* and in the normalized text between those */
    struct normal normal[STEPS_MAX];
    int normals;
    struct split split[STEPS_MAX];
    int splits;
    bool byte_level;   /* it was named, */
    bool prefix_space; /* and lets every piece begin with a space */
    struct split word; /* and splits it, unless the pattern is NULL */
    int32_t bos[BOS_MAX];
    int n_bos;
};

/* tokenizer_read - fill an empty tokenizer; on an error the caller closes it. */
int tokenizer_read(struct tokenizer *t, const struct json *root);

/* tokenizer_normalize - out becomes the normalized text; room is scratch. -ENOMEM, -ETIME,
 * -EFBIG. */
int tokenizer_normalize(const struct tokenizer *t, struct pattern_run *run, const char *s,
                        size_t bytes, struct text *out, struct text *room);

#endif
