/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sessions one after another: the MPI gives the keys of the first to the program in the next one. */
#include <mpi.h>
#include "../../gpu/driver.h"

int main(void)
{
	enum { LEN = 64 };
	char host[LEN], *s = NULL, *r = NULL;

	cuda_begin(0);
	CU(cuMemAlloc_v2, (void **, size_t), (void **)&s, LEN);
	CU(cuMemAlloc_v2, (void **, size_t), (void **)&r, LEN);
	for (int i = 0; i < 3; i++) {
		MPI_Session session;
		MPI_Group group;
		MPI_Comm comm;
		MPI_Datatype type;
		void *value = NULL;
		int key, flag = 0;

		MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
		MPI_Group_from_session_pset(session, "mpi://SELF", &group);
		MPI_Comm_create_from_group(group, "sessions", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
		MPI_Type_vector(3, 1, 2, MPI_INT, &type);
		MPI_Type_commit(&type);
		/* In the first one the library's key comes first. */
		if (i) {
			MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &key, NULL);
			MPI_Type_set_attr(type, key, host);
		}
		memset(host, i + 1, LEN);
		CU(cuMemcpy, (uint64_t, uint64_t, size_t), (uint64_t)s, (uint64_t)host, LEN);
		MPI_Sendrecv(s, 1, type, 0, 1, r, 1, type, 0, 1, comm, MPI_STATUS_IGNORE);
		CU(cuMemcpy, (uint64_t, uint64_t, size_t), (uint64_t)host, (uint64_t)r, LEN);
		if (i)
			MPI_Type_get_attr(type, key, &value, &flag);
		if (host[0] != i + 1 || host[8] != i + 1 || host[19] != i + 1 || (i && (!flag || value != host))) {
			printf("wrong sessions: number %d\n", i);
			return 1;
		}
		MPI_Type_free(&type);
		MPI_Comm_free(&comm);
		MPI_Group_free(&group);
		MPI_Session_finalize(&session);
	}
	printf("right sessions\n");
	return 0;
}
