/* Input of regen.sh: the public header of libibverbs. */
#include <infiniband/verbs.h>
