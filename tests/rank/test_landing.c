/* test_landing.c - end tokens, stop strings and limits inside accepted blocks of a made-up target.
 *
 * The target is a list of tokens; a drafter that is right for some of them cuts the list into
 * blocks. Whatever the blocks, ids, text and reason must be those of one token a round.
 */
#include "src/rank/landing.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define TOKENS 12
#define END_A 90
#define END_B 91
#define END_C 92

/* Token t < 20 stands for spelling[t]; ends have no text. */
static const char *const spelling[] = { "ab",   "c S",      "TO",       "P x",  "yz",
                                        "STOP", "\xf0\x9f", "\x98\x80", "\xff", "d" };

enum { AB, C_S, TO, P_X, YZ, STOP, HALF, OTHER_HALF, BAD, D };

static const char *bytes_of(const void *arg, int32_t tok, size_t *bytes)
{
    if (tok >= (int32_t)(sizeof(spelling) / sizeof(spelling[0])))
        return NULL;
    *bytes = strlen(spelling[tok]);
    return spelling[tok];
}

struct landing_case {
    const char *name, *stop, *stop2;
    int limit;
    bool ignore_end;
    int32_t tok[TOKENS];
    int n;      /* tokens that the target has */
    int landed; /* that must land */
    enum finish f;
    const char *text;
};

static const struct landing_case cases[] = {
    { "stop inside a block",
      "STOP",
      NULL,
      100,
      false,
      { AB, C_S, TO, P_X, YZ },
      5,
      4,
      FINISH_STOP,
      "abc " },
    { "stop at a token's edge",
      "STOP",
      NULL,
      100,
      false,
      { AB, STOP, YZ },
      3,
      2,
      FINISH_STOP,
      "ab" },
    { "two stops in a block",
      "P x",
      "TO",
      100,
      false,
      { AB, C_S, TO, P_X },
      4,
      3,
      FINISH_STOP,
      "abc S" },
    { "limit before the stop",
      "STOP",
      NULL,
      2,
      false,
      { D, D, STOP, D },
      4,
      2,
      FINISH_LENGTH,
      "dd" },
    { "stop at the limit's token",
      "STOP",
      NULL,
      3,
      false,
      { D, D, STOP, D },
      4,
      3,
      FINISH_STOP,
      "dd" },
    { "stop before the limit",
      "STOP",
      NULL,
      5,
      false,
      { D, D, STOP, D, D, D },
      6,
      3,
      FINISH_STOP,
      "dd" },
    { "limit, then a stop",
      "STOP",
      NULL,
      5,
      false,
      { D, D, D, D, D, STOP },
      6,
      5,
      FINISH_LENGTH,
      "ddddd" },
    { "limit of one", NULL, NULL, 1, false, { D, D, D, D, D }, 5, 1, FINISH_LENGTH, "d" },
    { "limit inside a stop: what was held is text",
      "STOP",
      NULL,
      3,
      false,
      { AB, C_S, TO, P_X },
      4,
      3,
      FINISH_LENGTH,
      "abc STO" },
    { "end inside a block", NULL, NULL, 100, false, { D, END_A, AB, YZ }, 4, 2, FINISH_END, "d" },
    { "the third of three ends", NULL, NULL, 100, false, { D, END_C, AB }, 3, 2, FINISH_END, "d" },
    { "the first of two ends", NULL, NULL, 100, false, { D, END_B, END_A }, 3, 2, FINISH_END, "d" },
    { "ends ignored", NULL, NULL, 4, true, { D, END_A, AB, END_B, D }, 5, 4, FINISH_LENGTH, "dab" },
    { "end at the limit's token", NULL, NULL, 2, false, { D, END_A, D }, 3, 2, FINISH_END, "d" },
    { "end while a stop is half there",
      "STOP",
      NULL,
      100,
      false,
      { C_S, TO, END_A },
      3,
      3,
      FINISH_END,
      "c STO" },
    { "limit inside a character",
      NULL,
      NULL,
      2,
      false,
      { D, HALF, OTHER_HALF },
      3,
      2,
      FINISH_LENGTH,
      "d\xef\xbf\xbd" },
    { "character over two tokens",
      NULL,
      NULL,
      3,
      false,
      { D, HALF, OTHER_HALF },
      3,
      3,
      FINISH_LENGTH,
      "d\xf0\x9f\x98\x80" },
    { "stop behind a split character",
      "STOP",
      NULL,
      100,
      false,
      { HALF, OTHER_HALF, STOP },
      3,
      3,
      FINISH_STOP,
      "\xf0\x9f\x98\x80" },
    { "a byte that is never text",
      NULL,
      NULL,
      2,
      false,
      { BAD, D },
      2,
      2,
      FINISH_LENGTH,
      "\xef\xbf\xbd\x64" },
    { "nothing ends it", "STOP", NULL, 100, false, { AB, YZ }, 2, 2, FINISH_NONE, "abyz" },
};

static const int32_t ends[] = { END_A, END_B, END_C };

/* Blocks of the target's tokens, sizes from the bits of `cuts`: a set bit ends a block behind that
 * token. */
static void run(const struct landing_case *c, unsigned cuts)
{
    const char *stop[2] = { c->stop, c->stop2 };
    int32_t ids[TOKENS];
    struct text text = { 0 };
    struct landing l = { .left = c->limit,
                         .end = ends,
                         .ends = c->ignore_end ? 0 : 3,
                         .bytes = bytes_of,
                         .ids = ids,
                         .text = &text };
    enum finish f = FINISH_NONE;
    int at = 0;

    stop_init(&l.scan, stop, (c->stop != NULL) + (c->stop2 != NULL));
    while (at < c->n && f == FINISH_NONE) {
        int n = 1, landed;

        while (at + n < c->n && !(cuts >> (at + n - 1) & 1))
            n++;
        landed = landing_take(&l, c->tok + at, n, &f);
        cr_assert(landed >= 1 && landed <= n && (landed == n || f != FINISH_NONE), "%s", c->name);
        at += landed;
    }
    if (f == FINISH_NONE)
        cr_assert(eq(int, landing_cut(&l), 0));
    cr_expect(eq(int, (int)f, (int)c->f), "%s, blocks %x", c->name, cuts);
    cr_expect(eq(int, l.n, c->landed), "%s, blocks %x", c->name, cuts);
    cr_expect(eq(int, l.left, c->limit - c->landed), "%s, blocks %x", c->name, cuts);
    cr_expect(memcmp(ids, c->tok, (size_t)c->landed * sizeof(ids[0])) == 0, "%s, blocks %x",
              c->name, cuts);
    cr_expect(text.bytes == strlen(c->text) && memcmp(text.s, c->text, text.bytes) == 0,
              "%s, blocks %x: \"%.*s\"", c->name, cuts, (int)text.bytes, text.s);
    landing_free(&l);
    text_free(&text);
}

Test(landing, the_first_reason_in_token_order_decides)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned cuts = 0; cuts < 1u << (cases[i].n - 1); cuts++)
            run(&cases[i], cuts);
}
