/* resident - the weights of a bound model in the memory of a device.
 *
 * pack_bind points a model's weights into the mapped pack. resident_open copies what they point at
 * to a device that does not read the host's memory, run by run as it lies in the pack, and points
 * them at the copies; codes that the pack leaves out (pack.h "hollow") are made on the device. Rows
 * of a row store stay where they are. On a host backend nothing changes.
 */
#ifndef TANDEM_MODEL_RESIDENT_H
#define TANDEM_MODEL_RESIDENT_H

#include "src/model/walk.h"

#include <stddef.h>

struct device;
struct pack;
struct resident;

/* resident_open - after pack_bind of the same parts, before the model's ready.
 * errors   -ENOMEM naming the bytes; -EINVAL a pack with holes on a host backend; the weights point
 *          into the pack or at freed copies then */
int resident_open(struct device *d, const struct pack *p, const struct walk_part *parts,
                  int n_parts, struct resident **out);

/* resident_bind - point another model of the same pack, bound to it, to the copies. */
int resident_bind(struct resident *r, const struct pack *p, const struct walk_part *parts,
                  int n_parts);

/* resident_close - before the device; the weights are unusable afterwards. NULL is fine. */
void resident_close(struct resident *r);

#endif
