/* Prints, for each class and operation, the set of datatypes shm offers. Built by against_shm.rs. */
#include <stdio.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_atomic.h>

int main(void)
{
	static const uint64_t class[] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->fabric_attr->prov_name = strdup("shm");
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) ||
	    fi_fabric(info->fabric_attr, &fabric, NULL) || fi_domain(fabric, info, &domain, NULL))
		return 1;
	for (int c = 0; c < 3; c++)
		for (int op = 0; op < 19; op++) {
			unsigned set = 0;
			struct fi_atomic_attr attr;
			for (int type = 0; type < 14; type++)
				if (!fi_query_atomic(domain, type, op, &attr, class[c]))
					set |= 1u << type;
			printf("%u\n", set);
		}
	return 0;
}
