/* limits - the fixed maxima that structs on devices, wires and configs share. */
#ifndef TANDEM_BASE_LIMITS_H
#define TANDEM_BASE_LIMITS_H

#define RANKS_MAX 8
#define SLOTS_MAX 4
#define WINDOW_MAX 16 /* rows of one slot when verifying */

#endif
