/* families - the tables of the implementers, for the one list in family.c. */
#ifndef TANDEM_MODEL_FAMILIES_H
#define TANDEM_MODEL_FAMILIES_H

struct family_ops;

extern const struct family_ops family_deepseek_v41;
extern const struct family_ops family_dense;

#endif
