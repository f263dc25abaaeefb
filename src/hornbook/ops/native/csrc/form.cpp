// Tells that the library holds forms for this instruction set.
#include "isa.h"

HB_EXPORT(i64, exists)() { return 1; }
