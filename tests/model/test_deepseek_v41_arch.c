/* Configs of V4.1 that are wrong in one key: refused by its name, whatever stands there. And the
 * rotation frequencies that the release's config makes. */
#include "kernels/backend.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/model/deepseek_v41.h"
#include "src/model/family.h"
#include "tests/base/capture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 16384

static char whole[TEXT_MAX];
static struct capture lines;

static void enter(void)
{
    char *text;
    size_t bytes;

    cr_assert(eq(int, file_read(POCKET "/config.json", TEXT_MAX / 2, &text, &bytes), 0));
    memcpy(whole, text, bytes + 1);
    free(text);
    capture_start(&lines);
}

TestSuite(deepseek_v41_arch, .init = enter);

/* The config with another value at the last place of key: ids of text_config come before those
 * beside it. */
static void with(const char *key, const char *value, char out[TEXT_MAX])
{
    char quoted[64];
    const char *at, *end;
    int depth = 0;

    snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
    at = NULL;
    for (const char *p = whole; (p = strstr(p, quoted)) != NULL;)
        at = p += strlen(quoted);
    cr_assert(at != NULL, "%s", key);
    for (end = at; depth > 0 || !strchr(",}\n", *end); end++)
        depth += (*end == '[') - (*end == ']');
    snprintf(out, TEXT_MAX, "%.*s%s%s", (int)(at - whole), whole, value, end);
}

static int open_config(const char *text)
{
    const struct family_ops *family;
    struct model *m = NULL;
    struct json *config;
    int r;

    cr_assert(eq(int, json_parse(text, strlen(text), "config.json", 8, &config), 0), "%s", text);
    cr_assert(eq(int, family_find(config, &family), 0));
    r = family->open(config, true, &m);
    if (r == 0)
        m->ops->close(m);
    json_close(config);
    return r;
}

static const struct {
    const char *key, *value;
} refused[] = {
    { "engram_num_embeddings", "\"x\"" },
    { "engram_num_embeddings", "8882" },
    { "engram_num_embeddings", "true" },
    { "engram_num_embeddings", "{}" },
    { "engram_num_embeddings", "[]" },
    { "engram_num_embeddings", "[8882]" },
    { "engram_num_embeddings", "[8882, 9912, 9912]" },
    { "engram_num_embeddings", "[8882, -1]" },
    { "engram_num_embeddings", "[8882, null]" },
    { "engram_pad_token_id", "4096" }, /* of a vocabulary of 4096 */
    { "engram_pad_token_id", "16777216" },
    { "qk_rope_head_dim", "1026" }, /* more than ops take */
    { "n_routed_experts", "1025" },
    { "dspark_n_routed_experts", "1025" },
    { "dspark_num_experts_per_tok", "5" }, /* of 4 */
    { "eos_token_id", "\"1\"" },
    { "eos_token_id", "1.5" },
    { "eos_token_id", "true" },
    { "eos_token_id", "{}" },
    { "eos_token_id", "-1" },
    { "eos_token_id", "4096" },
    { "eos_token_id", "[1, \"2\"]" },
    { "eos_token_id", "[1, 2, 3, 4, 5]" },
    { "beta_fast", "0" },
    { "beta_fast", "-32" },
    { "beta_fast", "0.5" },
    { "beta_slow", "0" },
    { "beta_slow", "-1" },
};

Test(deepseek_v41_arch, what_a_key_cannot_be_is_refused_by_its_name)
{
    char text[TEXT_MAX];

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        with(refused[i].key, refused[i].value, text);
        cr_expect(eq(int, open_config(text), -EINVAL), "%s: %s", refused[i].key, refused[i].value);
        cr_expect(strstr(lines.last, refused[i].key) != NULL, "%s: %s: %s", refused[i].key,
                  refused[i].value, lines.last);
    }
}

Test(deepseek_v41_arch, what_need_not_be_there_may_be_missing)
{
    static const char *const keys[] = { "engram_num_embeddings", "eos_token_id", "bos_token_id" };
    char text[TEXT_MAX];

    cr_expect(eq(int, open_config(whole), 0));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        with(keys[i], "null", text);
        cr_expect(eq(int, open_config(text), 0), "%s", keys[i]);
    }
    with("eos_token_id", "[1, 2, 3, 4]", text);
    cr_expect(eq(int, open_config(text), 0));
}

/* The check values of the released config: pairs up to 15 turn as they did, from 25 on by a
 * sixteenth. */
Test(deepseek_v41_arch, frequencies_of_the_release)
{
    static const struct {
        int pair;
        double f;
    } scaled[] = { { 0, 1 },
                   { 1, 0.68765604 },
                   { 15, 3.63553851e-3 },
                   { 16, 2.26562493e-3 },
                   { 20, 2.96977785e-4 },
                   { 24, 1.95312532e-5 },
                   { 25, 5.37231244e-6 },
                   { 31, 5.6805294e-7 } };
    const struct v41_arch a = { .rope_dims = 64,
                                .rope_theta = 10000,
                                .compress_theta = 160000,
                                .yarn_factor = 16,
                                .yarn_fast = 32,
                                .yarn_slow = 1,
                                .yarn_original = 65536 };
    const struct backend_ops *ops;
    struct device *d;
    const float *f[2];

    cr_assert(eq(int, backend_find("ref", &ops), 0));
    cr_assert(eq(int, ops->open(0, 1, &d), 0));
    for (int i = 0; i < 2; i++)
        cr_assert(eq(int, v41_freqs(&a, d, i, &f[i]), 0));
    for (int i = 0; i < a.rope_dims / 2; i++) {
        double want = pow(10000, -2.0 * i / a.rope_dims);

        cr_expect(epsilon_eq(dbl, (double)f[0][i], want, 2e-7 * want), "pair %d", i);
    }
    for (size_t i = 0; i < sizeof(scaled) / sizeof(scaled[0]); i++)
        cr_expect(epsilon_eq(dbl, (double)f[1][scaled[i].pair], scaled[i].f, 2e-7 * scaled[i].f),
                  "pair %d", scaled[i].pair);
    for (int i = 0; i < 2; i++)
        ops->free(d, (void *)(uintptr_t)f[i]);
    ops->close(d);
}
