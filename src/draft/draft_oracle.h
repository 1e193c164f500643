/* draft_oracle - drafts copied from a recorded serial run and spoiled on a schedule, for the gate
 * that wants every full, partial and empty accept without a drafter.
 *
 * Of the proposals of a slot, counted from 0: numbers 0 and 2 mod 4 are right, 1 mod 4 has draft
 * (number / 4) mod 5 wrong, 3 mod 4 the first.
 */
#ifndef TANDEM_DRAFT_DRAFT_ORACLE_H
#define TANDEM_DRAFT_DRAFT_ORACLE_H

#include <stdint.h>

struct drafter;

/* draft_oracle_set - the tokens of the slot's text by position, prompt and reply, n of them; the
 * count starts again. After reset, which forgets the record; without one nothing is proposed.
 * errors   -EINVAL d is another drafter; -ENOMEM
 * owns     a copy */
int draft_oracle_set(struct drafter *d, int slot, const int32_t *ids, int n);

#endif
