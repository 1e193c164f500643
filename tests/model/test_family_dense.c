/* The dense family against logits made in float64 by tests/vectors/dense/make.py, which shares no
 * code with it. */
#include "tests/rig/rig.h"

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/model/safetensors.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 40
#define VOCAB 1024

struct dense_case {
    const char *name;
    int32_t ids[ROWS];
    float want[ROWS * VOCAB];
    float tolerance;
};

static void read_tensor(const struct safetensors *f, const char *name, void *out, size_t bytes)
{
    const struct st_tensor *t = safetensors_find(f, name);

    cr_assert(t != NULL && t->end - t->begin == bytes);
    cr_assert(eq(int, full_pread(f->fd, out, bytes, (off_t)(f->data + t->begin), name), 0));
}

static void read_case(struct dense_case *c, const char *name, float tolerance)
{
    struct safetensors *f;
    char path[PATH_CAP];

    c->name = name;
    c->tolerance = tolerance;
    snprintf(path, sizeof(path), VECTORS "/dense/%s/goldens.safetensors", name);
    cr_assert(eq(int, safetensors_open(path, &f), 0));
    read_tensor(f, "ids", c->ids, sizeof(c->ids));
    read_tensor(f, "logits", c->want, sizeof(c->want));
    safetensors_close(f);
}

/* Chunks of 16, 1, 16, 7 rows: the logits of every row, whatever the windows. */
static void every_row(struct rig *g, void *arg)
{
    static const int chunks[] = { 16, 1, 16, 7 };
    const struct dense_case *c = arg;
    float *z = malloc(sizeof(float) * 16 * VOCAB), worst = 0;
    int slot, at = 0;

    cr_assert(eq(int, slot_take(g->pool, g->q, -1, &slot), 0));
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        rig_forward(g, slot, c->ids + at, chunks[i], true);
        rig_logits(g, z);
        for (int k = 0; k < chunks[i] * VOCAB; k++) {
            float d = fabsf(z[k] - c->want[at * VOCAB + k]);

            worst = d > worst || isnan(d) ? d : worst;
        }
        rig_keep(g, slot, chunks[i]);
        at += chunks[i];
    }
    printf("r%d of %d: %s differs by %.2g\n", g->rank, g->m->ranks, c->name, (double)worst);
    cr_expect(lt(flt, worst, c->tolerance), "%s", c->name);
    free(z);
}

static void run_case(const char *name)
{
    static struct dense_case c;
    char folder[PATH_CAP];

    read_case(&c, name, 1e-4f);
    snprintf(folder, sizeof(folder), VECTORS "/dense/%s", name);
    for (int ranks = 1; ranks <= 2; ranks++)
        rigs_run(&(struct rig_settings){ .model = folder, .ranks = ranks, .fp32 = true }, every_row,
                 &c);
}

Test(dense, llama_equals_float64)
{
    run_case("llama");
}

Test(dense, qwen3_equals_float64)
{
    run_case("qwen3");
}

/* A config whose arithmetic is not implemented is refused by the name of the key. */
static const char *const refused[] = {
    "\"attention_bias\": true",
    "\"hidden_act\": \"gelu\"",
    "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}",
    "\"use_sliding_window\": true",
    "\"layer_types\": [\"sliding_attention\"]",
    "\"partial_rotary_factor\": 0.5",
    "\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
    "\"num_key_value_heads\": 3",
    "\"vocab_size\": 0",
    "\"rope_theta\": 0",
    "\"rope_theta\": -1e4",
    "\"eos_token_id\": \"2\"",
    "\"eos_token_id\": [1, 2, 3, 4, 5]",
};

Test(dense, refuses_other_arithmetic)
{
    static const char base[] =
        "\"model_type\": \"qwen3\", \"hidden_size\": 64, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"rms_norm_eps\": 1e-6, "
        "\"max_position_embeddings\": 64";

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const struct family_ops *family;
        struct model *m = NULL;
        struct json *config;
        char text[1024];

        snprintf(text, sizeof(text), "{%s%s%s, %s}", base,
                 strstr(refused[i], "vocab_size") ? "" : ", \"vocab_size\": 256",
                 strstr(refused[i], "rope_theta") ? "" : ", \"rope_theta\": 1e4", refused[i]);
        cr_assert(eq(int, json_parse(text, strlen(text), "config.json", 8, &config), 0));
        cr_assert(eq(int, family_find(config, &family), 0));
        cr_expect(eq(int, family->open(config, true, &m), -EINVAL), "%s", refused[i]);
        json_close(config);
    }
}

/* Sizes at the edge of what states and ops take, and one beyond. */
Test(dense, refuses_sizes_that_nothing_holds)
{
    static const struct {
        int dim, layers, heads, nextn, r;
        const char *more;
    } cases[] = {
        { 64, 254, 4, 1, 0, "" },
        { 64, 255, 4, 1, -EINVAL, "" },
        { 64, 1, 64, 0, -EINVAL, "" }, /* heads of 1 */
        { 64, 1, 128, 0, -EINVAL, "" },
        { 2048, 1, 2, 0, 0, "" },
        { 4096, 1, 2, 0, -EINVAL, "" },
        { 64, 1, 4, 0, 0, ", \"head_dim\": 1024" },
        { 64, 1, 4, 0, -EINVAL, ", \"head_dim\": 1026" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct state_list *l = calloc(1, sizeof(*l));
        const struct family_ops *family;
        struct model *m = NULL;
        struct json *config;
        char text[1024];

        snprintf(text, sizeof(text),
                 "{\"model_type\": \"qwen3\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
                 "\"num_attention_heads\": %d, \"num_nextn_predict_layers\": %d, "
                 "\"intermediate_size\": 96, \"rms_norm_eps\": 1e-6, \"vocab_size\": 256, "
                 "\"max_position_embeddings\": 64, \"rope_theta\": 1e4%s}",
                 cases[i].dim, cases[i].layers, cases[i].heads, cases[i].nextn, cases[i].more);
        cr_assert(eq(int, json_parse(text, strlen(text), "config.json", 8, &config), 0));
        cr_assert(eq(int, family_find(config, &family), 0));
        cr_assert(eq(int, family->open(config, true, &m), cases[i].r), "case %zu", i);
        if (m) {
            m->ops->states(m, l);
            if (m->mtp)
                m->mtp->states(m, l);
            cr_expect(le(int, l->n + (m->mtp != NULL), STATES_MAX), "case %zu", i);
            m->ops->close(m);
        }
        json_close(config);
        free(l);
    }
}

Test(dense, refuses_to_cut_a_key_head)
{
    const struct family_ops *family;
    struct json *config;
    struct model *m;

    cr_assert(eq(int, json_read(VECTORS "/dense/qwen3/config.json", 1 << 20, 8, &config), 0));
    cr_assert(eq(int, family_find(config, &family), 0));
    cr_assert(eq(int, family->open(config, true, &m), 0));
    cr_expect(eq(int, family->split(m, 0, 2), 0));
    cr_expect(eq(int, family->split(m, 0, 4), -EINVAL));
    m->ops->close(m);
    json_close(config);
}
