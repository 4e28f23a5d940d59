! SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
! mpi_f08: device memory by addresses, typed handles, and sections of arrays that are contiguous.
program calls
    use, intrinsic :: iso_c_binding
    use mpi_f08
    implicit none
    interface
        function device_take(n) bind(c)
            import :: c_ptr, c_int
            integer(c_int), value :: n
            type(c_ptr) :: device_take
        end function
        subroutine device_put(at, from, n) bind(c)
            import :: c_ptr, c_int
            type(c_ptr), value :: at, from
            integer(c_int), value :: n
        end subroutine
        subroutine device_get(to, at, n) bind(c)
            import :: c_ptr, c_int
            type(c_ptr), value :: at, to
            integer(c_int), value :: n
        end subroutine
    end interface
    integer, parameter :: n = 2000
    real(8), target :: host(n), got(n)
    real(8), pointer, contiguous :: a(:), b(:)
    type(c_ptr) :: pa, pb
    type(MPI_Request) :: request(2)
    type(MPI_Status) :: status
    integer :: me, ranks, i, to, from, bad, all, count
    integer(kind=MPI_ADDRESS_KIND) :: place

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, me)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    to = mod(me + 1, ranks)
    from = mod(me + ranks - 1, ranks)
    pa = device_take(8 * n)
    pb = device_take(8 * n)
    call c_f_pointer(pa, a, [n])
    call c_f_pointer(pb, b, [n])
    bad = 0
    host = [(100.0d0 * me + i, i = 1, n)]
    call device_put(pa, c_loc(host), 8 * n)

    call MPI_Irecv(b(1:n / 2), n / 2, MPI_DOUBLE_PRECISION, from, 1, MPI_COMM_WORLD, request(1))
    call MPI_Isend(a(n / 2 + 1:n), n / 2, MPI_DOUBLE_PRECISION, to, 1, MPI_COMM_WORLD, request(2))
    call MPI_Wait(request(1), status)
    call MPI_Wait(request(2), MPI_STATUS_IGNORE)
    call MPI_Get_count(status, MPI_DOUBLE_PRECISION, count)
    if (count /= n / 2 .or. status%MPI_SOURCE /= from) bad = bad + 1
    call device_get(c_loc(got), pb, 8 * n)
    bad = bad + count_wrong(got(1:n / 2), [(100.0d0 * from + n / 2 + i, i = 1, n / 2)])

    call MPI_Allreduce(a, b, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
    call device_get(c_loc(got), pb, 8 * n)
    bad = bad + count_wrong(got, [(100.0d0 * (ranks * (ranks - 1) / 2) + ranks * i, i = 1, n)])

    call MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD)
    call MPI_Bcast(a, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
    call device_get(c_loc(got), pa, 8 * n)
    bad = bad + count_wrong(got, [(100.0d0 * (ranks - 1) + i, i = 1, n)])

    place = 0
    call MPI_Pack_external('external32', a, n, MPI_DOUBLE_PRECISION, b, int(8 * n, MPI_ADDRESS_KIND), place)
    place = 0
    call device_put(pa, c_loc(host), 8 * n)
    call MPI_Unpack_external('external32', b, int(8 * n, MPI_ADDRESS_KIND), place, a, n, MPI_DOUBLE_PRECISION)
    call device_get(c_loc(got), pa, 8 * n)
    bad = bad + count_wrong(got, [(100.0d0 * (ranks - 1) + i, i = 1, n)])

    call MPI_Reduce(bad, all, 1, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD)
    if (me == 0 .and. all == 0) print '(a)', 'right mpi_f08'
    if (me == 0 .and. all /= 0) print *, 'wrong mpi_f08', all
    call MPI_Finalize()

contains

    integer function count_wrong(is, should)
        real(8), intent(in) :: is(:), should(:)
        integer :: j
        count_wrong = 0
        do j = 1, size(is)
            if (is(j) /= should(j)) count_wrong = count_wrong + 1
        end do
    end function
end program
