/* landing.c owns the order of the reasons to end; stop.c finds the strings. */
#include "src/rank/landing.h"

#include <assert.h>

bool landing_is_end(const struct landing *l, int32_t tok)
{
    for (int i = 0; i < l->ends; i++)
        if (l->end[i] == tok)
            return true;
    return false;
}

/* One more token; 1 if a stop string is complete with it. */
static int add_text(struct landing *l, int32_t tok)
{
    size_t bytes = 0;
    const char *b = l->bytes(l->arg, tok, &bytes);

    return b ? stop_add(&l->scan, b, bytes, l->text) : 0;
}

int landing_take(struct landing *l, const int32_t *tok, int n, enum finish *f)
{
    int landed = 0, r = 0;

    *f = FINISH_NONE;
    while (landed < n && *f == FINISH_NONE) {
        int32_t t = tok[landed++];

        assert(l->left > 0);
        l->ids[l->n++] = t;
        l->left--;
        if (landing_is_end(l, t)) {
            *f = FINISH_END;
            break;
        }
        r = add_text(l, t);
        if (r < 0)
            return r;
        if (r == 1)
            *f = FINISH_STOP;
        else if (l->left == 0)
            *f = FINISH_LENGTH;
    }
    if (*f == FINISH_END || *f == FINISH_LENGTH) {
        r = landing_cut(l);
        if (r < 0)
            return r;
    }
    return landed;
}

int landing_cut(struct landing *l)
{
    return stop_end(&l->scan, l->text);
}

void landing_free(struct landing *l)
{
    stop_free(&l->scan);
}
