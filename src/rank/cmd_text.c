/* cmd_text.c owns the commands that need a tokenizer and nothing else. */
#include "src/base/json.h"
#include "src/model/tokenizer.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/packs.h"
#include "src/rank/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_tokenizer(const struct options *o, struct tokenizer **out)
{
    enum exit_step step;
    int r = packs_tokenizer(&o->cfg, &step, out);

    return exit_code_of(step, r);
}

static int print_ids_json(const struct prompt *p)
{
    struct json_writer w;
    int r;

    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "ids");
    for (int i = 0; i < p->n; i++)
        json_put_int(&w, NULL, p->ids[i]);
    json_end_array(&w);
    json_end_object(&w);
    r = json_write_line(&w, stdout);
    json_writer_free(&w);
    return r;
}

int cmd_tokenize(struct options *o)
{
    struct prompt p = { 0 };
    struct tokenizer *t;
    int code = open_tokenizer(o, &t), r = 0;

    if (code != 0)
        return code;
    code = prompt_read(o, &o->given[0], t, tokenizer_vocab(t), &p);
    tokenizer_close(t);
    if (code != 0)
        return code;
    if (o->json)
        r = print_ids_json(&p);
    for (int i = 0; i < p.n && !o->json; i++)
        printf("%s%d", i > 0 ? " " : "", p.ids[i]);
    if (!o->json)
        putchar('\n');
    free(p.ids);
    return exit_code_of(STEP_WRITE, r);
}

static int print_text(const char *text, size_t bytes, bool json)
{
    struct json_writer w;
    int r;

    if (!json) {
        fwrite(text, 1, bytes, stdout);
        putchar('\n');
        return 0;
    }
    json_writer_init(&w);
    json_begin_object(&w, NULL);
    json_put_strn(&w, "text", text, bytes);
    json_end_object(&w);
    r = json_write_line(&w, stdout);
    json_writer_free(&w);
    return r;
}

int cmd_detokenize(struct options *o)
{
    struct prompt p = { 0 };
    struct tokenizer *t;
    char *text;
    size_t bytes;
    int code = open_tokenizer(o, &t), r;

    if (code != 0)
        return code;
    code = prompt_read(o, &o->given[0], t, tokenizer_vocab(t), &p);
    if (code == 0) {
        r = tokenizer_decode(t, p.ids, p.n, !o->special, &text, &bytes);
        code = exit_code_of(STEP_DATA, r);
        free(p.ids);
    }
    tokenizer_close(t);
    if (code != 0)
        return code;
    r = print_text(text, bytes, o->json);
    free(text);
    return exit_code_of(STEP_WRITE, r);
}
