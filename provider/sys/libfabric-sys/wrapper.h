/* Input of regen.sh: every public libfabric header a provider can need. */
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

/* fi_profile.h uses it in an inline function, and no header defines it. */
#define container_of(ptr, type, field) \
	((type *) ((char *) (ptr) - offsetof(type, field)))

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_profile.h>
#include <rdma/fi_xpu.h>
#include <rdma/providers/fi_prov.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_peer.h>
