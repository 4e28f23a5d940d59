! SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
! mpif.h: device memory by addresses, MPI_IN_PLACE and MPI_BOTTOM of Fortran, in the calls of C's names.
      program calls
      use, intrinsic :: iso_c_binding
      implicit none
      include 'mpif.h'
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
      integer, parameter :: n = 1000
      integer, target :: host(n), got(n)
      integer, pointer :: a(:), b(:)
      type(c_ptr) :: pa, pb
      integer me, ranks, ierr, i, to, from, bad, all
      integer request(2), status(MPI_STATUS_SIZE), column
      integer(kind=MPI_ADDRESS_KIND) at
      integer one(1), type
      integer(kind=MPI_ADDRESS_KIND) places(1), size, place, answer
      integer win
      logical is_set

      call MPI_Init(ierr)
      call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
      call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
      to = mod(me + 1, ranks)
      from = mod(me + ranks - 1, ranks)
      pa = device_take(4 * n)
      pb = device_take(4 * n)
      call c_f_pointer(pa, a, [n])
      call c_f_pointer(pb, b, [n])
      bad = 0
      do i = 1, n
        host(i) = 1000 * me + i
      end do
      call device_put(pa, c_loc(host), 4 * n)

      call MPI_Sendrecv(a, n, MPI_INTEGER, to, 1, b, n, MPI_INTEGER,
     &  from, 1, MPI_COMM_WORLD, status, ierr)
      call device_get(c_loc(got), pb, 4 * n)
      do i = 1, n
        if (got(i) .ne. 1000 * from + i) bad = bad + 1
      end do

      call MPI_Irecv(b, n, MPI_INTEGER, to, 2, MPI_COMM_WORLD,
     &  request(1), ierr)
      call MPI_Isend(a, n, MPI_INTEGER, from, 2, MPI_COMM_WORLD,
     &  request(2), ierr)
      call MPI_Waitall(2, request, MPI_STATUSES_IGNORE, ierr)
      call device_get(c_loc(got), pb, 4 * n)
      do i = 1, n
        if (got(i) .ne. 1000 * to + i) bad = bad + 1
      end do

      call MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_INTEGER, MPI_SUM,
     &  MPI_COMM_WORLD, ierr)
      call device_get(c_loc(got), pa, 4 * n)
      do i = 1, n
        if (got(i) .ne. 1000 * (ranks * (ranks - 1) / 2) + ranks * i)
     &    bad = bad + 1
      end do

! A vector: every tenth element.
      call device_put(pa, c_loc(host), 4 * n)
      call MPI_Type_vector(n / 10, 1, 10, MPI_INTEGER, column, ierr)
      call MPI_Type_commit(column, ierr)
      call device_put(pb, c_loc(host), 4 * n)
      call MPI_Sendrecv(a, 1, column, to, 3, b, n / 10, MPI_INTEGER,
     &  from, 3, MPI_COMM_WORLD, status, ierr)
      call device_get(c_loc(got), pb, 4 * n)
      do i = 1, n / 10
        if (got(i) .ne. 1000 * from + 10 * (i - 1) + 1) bad = bad + 1
      end do
      do i = n / 10 + 1, n
        if (got(i) .ne. 1000 * me + i) bad = bad + 1
      end do

! MPI_BOTTOM with an absolute address.
      call MPI_Get_address(a, at, ierr)
      one(1) = n
      places(1) = at
      call MPI_Type_create_hindexed(1, one, places, MPI_INTEGER, type,
     &  ierr)
      call MPI_Type_commit(type, ierr)
      call MPI_Bcast(MPI_BOTTOM, 1, type, 0, MPI_COMM_WORLD, ierr)
      call device_get(c_loc(got), pa, 4 * n)
      do i = 1, n
        if (got(i) .ne. i) bad = bad + 1
      end do

! The representation of all machines: the length of its name is an
! argument behind the error's place.
      call device_put(pa, c_loc(host), 4 * n)
      size = 4 * n
      place = 0
      call MPI_Pack_external('external32', a, n, MPI_INTEGER, b, size,
     &  place, ierr)
      if (ierr .ne. MPI_SUCCESS .or. place .ne. size) bad = bad + 1
      call device_put(pa, c_loc(got), 4 * n)
      place = 0
      call MPI_Unpack_external('external32 ', b, size, place, a, n,
     &  MPI_INTEGER, ierr)
      if (ierr .ne. MPI_SUCCESS .or. place .ne. size) bad = bad + 1
      call device_get(c_loc(got), pa, 4 * n)
      do i = 1, n
        if (got(i) .ne. host(i)) bad = bad + 1
      end do

! A window's attributes are values, and its base is the device's.
      call MPI_Win_create(a, size, 4, MPI_INFO_NULL, MPI_COMM_WORLD,
     &  win, ierr)
      call MPI_Win_get_attr(win, MPI_WIN_BASE, answer, is_set, ierr)
      call MPI_Get_address(a, at, ierr)
      if (.not. is_set .or. answer .ne. at) bad = bad + 1
      call MPI_Win_get_attr(win, MPI_WIN_MODEL, answer, is_set, ierr)
      if (.not. is_set .or. (answer .ne. MPI_WIN_SEPARATE .and.
     &  answer .ne. MPI_WIN_UNIFIED)) bad = bad + 1
      call MPI_Win_free(win, ierr)

      call MPI_Reduce(bad, all, 1, MPI_INTEGER, MPI_SUM, 0,
     &  MPI_COMM_WORLD, ierr)
      if (me .eq. 0 .and. all .eq. 0) print '(a)', 'right mpif.h'
      if (me .eq. 0 .and. all .ne. 0) print *, 'wrong mpif.h', all
      call MPI_Finalize(ierr)
      end program
