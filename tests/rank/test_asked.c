/* test_asked.c - lines of a jobs file: what they say, and each thing that they must not say. */
#include "src/rank/asked.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/tokenizer.h"
#include "src/rank/exit_code.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 4096
#define CONTEXT 64

static struct tokenizer *tok;
static struct options line;
static char lines[4096];

static void keep_lines(void *arg, enum log_level level, const char *text)
{
    size_t at = strlen(lines);

    snprintf(lines + at, sizeof(lines) - at, "%s\n", text);
}

static void setup(void)
{
    char *text;
    size_t bytes;

    cr_assert(eq(int, file_read(POCKET "/tokenizer.json", (size_t)64 << 20, &text, &bytes), 0));
    cr_assert(eq(int, tokenizer_open(text, bytes, "tokenizer.json", &tok), 0));
    free(text);
    line = (struct options){ .max_tokens = 128, .replies = 1 };
    sampler_default(&line.sampler);
    lines[0] = 0;
    log_sink(keep_lines, NULL);
}

static void teardown(void)
{
    tokenizer_close(tok);
}

TestSuite(asked, .init = setup, .fini = teardown);

static struct asking with_line(void)
{
    return (struct asking){ .o = &line, .tok = tok, .vocab = VOCAB, .context = CONTEXT };
}

static int read_job(const char *text, struct asked *q)
{
    struct asking a = with_line();

    return asked_job(&a, text, strlen(text), "jobs", q);
}

Test(asked, a_job_says_everything)
{
    struct asked q;
    int code = read_job("{\"id\":\"x\",\"ids\":[1,2,3],\"max_tokens\":9,\"min_tokens\":2,"
                        "\"temperature\":0.5,\"top_k\":7,\"top_p\":0.9,\"min_p\":0.1,\"seed\":11,"
                        "\"n\":3,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[4,5],"
                        "\"ignore_eos\":true,\"logit_bias\":{\"6\":-2.5},"
                        "\"banned_token_ids\":[7,8],\"logprobs\":4,\"repetition_penalty\":1.1,"
                        "\"frequency_penalty\":0.25,\"presence_penalty\":-0.5,\"draft\":false}",
                        &q);
    const struct sampler *s = &q.q.sampler;

    cr_assert(eq(int, code, 0), "%s", lines);
    cr_expect(strcmp(q.id, "x") == 0);
    cr_expect(q.q.n == 3 && q.q.ids[2] == 3 && q.q.max_tokens == 9 && q.replies == 3);
    cr_expect(s->min_tokens == 2 && s->temperature == 0.5 && s->top_k == 7 && s->top_p == 0.9);
    cr_expect(s->min_p == 0.1 && s->seed == 11 && s->logprobs == 5 && s->repetition == 1.1);
    cr_expect(s->frequency == 0.25 && s->presence == -0.5 && q.q.ignore_end && !q.q.draft);
    cr_expect(q.q.stops == 2 && strcmp(q.q.stop[1], "bc") == 0);
    cr_expect(q.q.stop_ids == 2 && q.q.stop_id[1] == 5);
    cr_assert(eq(int, s->biases, 3));
    cr_expect(q.q.bias[0].id == 6 && q.q.bias[0].add == -2.5f);
    cr_expect(q.q.bias[2].id == 8 && q.q.bias[2].add == -INFINITY);
    asked_drop(&q);
}

Test(asked, what_a_job_leaves_out_is_as_on_the_command_line)
{
    struct asked q;

    line.max_tokens = 5;
    line.sampler.temperature = 1;
    line.sampler.seed = 3;
    line.seeded = true;
    line.stop[0] = "end";
    line.stops = 1;
    line.bias[0] = (struct logit_bias){ 9, 1 };
    line.sampler.biases = 1;
    cr_assert(eq(int, read_job("{\"prompt\":\"a b\"}", &q), 0), "%s", lines);
    cr_expect(q.q.n > 1 && q.q.max_tokens == 5 && q.q.sampler.temperature == 1);
    cr_expect(q.q.sampler.seed == 3 && q.q.stops == 1 && q.q.bias[0].id == 9 && q.replies == 1);
    asked_drop(&q);
    cr_assert(eq(int, read_job("{\"prompt\":\"a\",\"stop\":[],\"logit_bias\":{}}", &q), 0));
    cr_expect(q.q.stops == 0 && q.q.sampler.biases == 0);
    asked_drop(&q);
}

Test(asked, a_seed_that_no_integer_of_json_holds_comes_as_text)
{
    struct asked q;

    cr_assert(eq(int, read_job("{\"prompt\":\"a\",\"seed\":\"18446744073709551615\"}", &q), 0));
    cr_expect(q.q.sampler.seed == UINT64_MAX && q.seeded);
    asked_drop(&q);
}

Test(asked, a_sampled_job_without_a_seed_gets_one_of_its_own)
{
    struct asked a, b;

    cr_assert(eq(int, read_job("{\"prompt\":\"a\",\"temperature\":1}", &a), 0));
    cr_assert(eq(int, read_job("{\"prompt\":\"a\",\"temperature\":1}", &b), 0));
    cr_expect(a.q.sampler.seed != b.q.sampler.seed);
    cr_expect(strstr(lines, "seed ") != NULL);
    asked_drop(&a);
    asked_drop(&b);
}

struct bad_job {
    const char *text, *says;
};

static const struct bad_job bad[] = {
    { "", "end of file" },
    { "[]", "want an object" },
    { "{\"prompt\":\"a\"} x", "line 1" },
    { "{\"prompt\":\"a\",\"prompt\":\"b\"}", "duplicate" },
    { "{}", "prompt and ids" },
    { "{\"prompt\":\"a\",\"ids\":[1]}", "prompt and ids" },
    { "{\"prompt\":5}", "prompt" },
    { "{\"prompt\":\"a\",\"temprature\":1}", "temprature" },
    { "{\"ids\":[]}", "empty" },
    { "{\"ids\":[4096]}", "ids[0]" },
    { "{\"ids\":[-1]}", "ids[0]" },
    { "{\"ids\":[1.5]}", "ids[0]" },
    { "{\"ids\":\"1\"}", "ids" },
    { "{\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens" },
    { "{\"prompt\":\"a\",\"max_tokens\":3000000000}", "max_tokens" },
    { "{\"prompt\":\"a\",\"temperature\":101}", "temperature" },
    { "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature" },
    { "{\"prompt\":\"a\",\"top_p\":2}", "top_p" },
    { "{\"prompt\":\"a\",\"top_k\":-1}", "top_k" },
    { "{\"prompt\":\"a\",\"seed\":-1}", "seed" },
    { "{\"prompt\":\"a\",\"seed\":\"18446744073709551616\"}", "seed" },
    { "{\"prompt\":\"a\",\"seed\":\"-1\"}", "seed" },
    { "{\"prompt\":\"a\",\"seed\":\"\"}", "seed" },
    { "{\"prompt\":\"a\",\"n\":0}", "n" },
    { "{\"prompt\":\"a\",\"n\":65}", "n" },
    { "{\"prompt\":\"a\",\"stop\":\"\"}", "stop" },
    { "{\"prompt\":\"a\",\"stop\":[1]}", "stop[0]" },
    { "{\"prompt\":\"a\",\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
      "\"a\","
      "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}",
      "17 texts" },
    { "{\"prompt\":\"a\",\"stop_token_ids\":[1,2,3,4,5,6,7,8,9]}", "9 stop tokens" },
    { "{\"prompt\":\"a\",\"stop_token_ids\":[5000]}", "stop_token_ids[0]" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"4096\":1}}", "logit_bias.4096" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias.x" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"-1\":1}}", "logit_bias.-1" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"99999999999999999999\":1}}", "logit_bias.9999" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"1\":2000}}", "logit_bias" },
    { "{\"prompt\":\"a\",\"logit_bias\":[1]}", "logit_bias" },
    { "{\"prompt\":\"a\",\"logit_bias\":{\"1\":1},\"banned_token_ids\":[1]}", "two biases" },
    { "{\"prompt\":\"a\",\"banned_token_ids\":[4096]}", "banned_token_ids[0]" },
    { "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs" },
    { "{\"prompt\":\"a\",\"repetition_penalty\":0.001}", "repetition_penalty" },
    { "{\"prompt\":\"a\",\"ignore_eos\":1}", "ignore_eos" },
    { "{\"prompt\":\"a\",\"draft\":\"yes\"}", "draft" },
};

Test(asked, refuses_what_makes_no_sense_by_name)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct asked q;

        lines[0] = 0;
        cr_expect(eq(int, read_job(bad[i].text, &q), CODE_DATA), "%s", bad[i].text);
        cr_expect(strstr(lines, bad[i].says) != NULL, "%s: \"%s\"", bad[i].text, lines);
        cr_expect(strstr(lines, "error: jobs: ") != NULL, "%s: \"%s\"", bad[i].text, lines);
        cr_expect(strchr(lines, '\n') == strrchr(lines, '\n'), "%s: \"%s\"", bad[i].text, lines);
    }
}

Test(asked, a_prompt_may_fill_the_context_and_no_more)
{
    char text[CONTEXT * 8];
    struct asked q;

    for (int n = CONTEXT; n <= CONTEXT + 1; n++) {
        size_t at = (size_t)snprintf(text, sizeof(text), "{\"ids\":[1");

        for (int i = 1; i < n; i++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, ",1");
        snprintf(text + at, sizeof(text) - at, "]}");
        cr_expect(eq(int, read_job(text, &q), n == CONTEXT ? 0 : CODE_DATA));
        if (n == CONTEXT)
            asked_drop(&q);
    }
    cr_expect(strstr(lines, "jobs: prompt has 65 tokens, the context holds 64") != NULL);
}
