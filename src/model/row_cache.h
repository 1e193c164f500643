/* row_cache - rows as they lie in the file, by their place in it; bounded, one size for all.
 *
 * Replacement is CLOCK: a hand passes over the entries, spares one that was found since it last
 * came by, and takes the first that was not. A row that came in with a long prompt and was never
 * found goes before one that is found again and again.
 */
#ifndef TANDEM_MODEL_ROW_CACHE_H
#define TANDEM_MODEL_ROW_CACHE_H

#include <stddef.h>
#include <stdint.h>

struct row_cache;

/* row_cache_open - for rows of up to row_bytes bytes, at most rows of them.
 * in       bound: bytes of entries and index together; too few for an entry is a cache of none
 * errors   -ENOMEM */
int row_cache_open(size_t bound, size_t row_bytes, uint64_t rows, struct row_cache **out);
void row_cache_close(struct row_cache *c);

/* row_cache_hint - a look-up of this place comes soon: step 0 some time before it, step 1 between
 * that and the look-up. Memory is read meanwhile. */
void row_cache_hint(const struct row_cache *c, uint64_t place, int step);

/* row_cache_find - the row's bytes until the next put; NULL if it is not here. */
const void *row_cache_find(struct row_cache *c, uint64_t place);

/* row_cache_put - keep a copy; a row that is here already is left as it is. */
void row_cache_put(struct row_cache *c, uint64_t place, const void *row, size_t bytes);

/* row_cache_bytes, row_cache_slots - what was reserved, and the entries that fit into it */
size_t row_cache_bytes(const struct row_cache *c);
uint32_t row_cache_slots(const struct row_cache *c);

#endif
