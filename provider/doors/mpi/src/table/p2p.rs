//! Point-to-point calls, MPI_Pack and MPI_Unpack.

use crate::entry::rows;
use crate::row::Count::{Bytes, One, Partitions};
use crate::row::Dir::{In, InOut, Out};
use crate::row::{Buf, Ends, On};

const SENT: &[Buf] = &[Buf::new(In, 0, One(1), 2).direct()];
// The MPI copies them by the CPU.
const BUFFERED: &[Buf] = &[Buf::new(In, 0, One(1), 2)];
const REPLACED: &[Buf] = &[Buf::new(InOut, 0, One(1), 2)];
// A message may be shorter than the buffer, or there may be none from MPI_PROC_NULL.
const RECEIVED: &[Buf] = &[Buf::new(InOut, 0, One(1), 2).direct()];
const EXCHANGED: &[Buf] = &[Buf::new(In, 0, One(1), 2).direct(), Buf::new(InOut, 5, One(6), 7).direct()];
const SENT_IN_PARTS: &[Buf] = &[Buf::new(In, 0, Partitions(1, 2), 3)];
const RECEIVED_IN_PARTS: &[Buf] = &[Buf::new(InOut, 0, Partitions(1, 2), 3)];
const PACKED: &[Buf] = &[Buf::new(In, 0, One(1), 2), Buf::new(InOut, 3, One(4), 0).bytes()];
const UNPACKED: &[Buf] = &[Buf::new(In, 0, One(1), 0).bytes(), Buf::new(Out, 3, One(4), 5)];
const PACKED_EXTERNAL: &[Buf] = &[Buf::new(In, 1, One(2), 3), Buf::new(InOut, 4, Bytes(5), 0).bytes()];
const UNPACKED_EXTERNAL: &[Buf] = &[Buf::new(In, 1, Bytes(2), 0).bytes(), Buf::new(Out, 4, One(5), 6)];

rows! {
    SEND: MPI_Send [MPI_Send_c] [mpi_send_, ompi_send_f]; 6, On::Comm(5), Ends::Returns, SENT;
    BSEND: MPI_Bsend [MPI_Bsend_c] [mpi_bsend_, ompi_bsend_f]; 6, On::Comm(5), Ends::Returns, BUFFERED;
    SSEND: MPI_Ssend [MPI_Ssend_c] [mpi_ssend_, ompi_ssend_f]; 6, On::Comm(5), Ends::Returns, SENT;
    RSEND: MPI_Rsend [MPI_Rsend_c] [mpi_rsend_, ompi_rsend_f]; 6, On::Comm(5), Ends::Returns, SENT;
    RECV: MPI_Recv [MPI_Recv_c] [mpi_recv_, ompi_recv_f]; 7, On::Comm(5), Ends::Returns, RECEIVED;
    MRECV: MPI_Mrecv [MPI_Mrecv_c] [mpi_mrecv_, ompi_mrecv_f]; 5, On::Nothing, Ends::Returns, RECEIVED;
    SENDRECV: MPI_Sendrecv [MPI_Sendrecv_c] [mpi_sendrecv_, ompi_sendrecv_f]; 12, On::Comm(10), Ends::Returns, EXCHANGED;
    SENDRECV_REPLACE: MPI_Sendrecv_replace [MPI_Sendrecv_replace_c] [mpi_sendrecv_replace_, ompi_sendrecv_replace_f]; 9, On::Comm(7), Ends::Returns, REPLACED;
    ISEND: MPI_Isend [MPI_Isend_c] [mpi_isend_, ompi_isend_f]; 7, On::Comm(5), Ends::Request(6), SENT;
    IBSEND: MPI_Ibsend [MPI_Ibsend_c] [mpi_ibsend_, ompi_ibsend_f]; 7, On::Comm(5), Ends::Request(6), BUFFERED;
    ISSEND: MPI_Issend [MPI_Issend_c] [mpi_issend_, ompi_issend_f]; 7, On::Comm(5), Ends::Request(6), SENT;
    IRSEND: MPI_Irsend [MPI_Irsend_c] [mpi_irsend_, ompi_irsend_f]; 7, On::Comm(5), Ends::Request(6), SENT;
    IRECV: MPI_Irecv [MPI_Irecv_c] [mpi_irecv_, ompi_irecv_f]; 7, On::Comm(5), Ends::Request(6), RECEIVED;
    IMRECV: MPI_Imrecv [MPI_Imrecv_c] [mpi_imrecv_, ompi_imrecv_f]; 5, On::Nothing, Ends::Request(4), RECEIVED;
    ISENDRECV: MPI_Isendrecv [MPI_Isendrecv_c] [mpi_isendrecv_, ompi_isendrecv_f]; 12, On::Comm(10), Ends::Request(11), EXCHANGED;
    ISENDRECV_REPLACE: MPI_Isendrecv_replace [MPI_Isendrecv_replace_c] [mpi_isendrecv_replace_, ompi_isendrecv_replace_f]; 9, On::Comm(7), Ends::Request(8), REPLACED;
    SEND_INIT: MPI_Send_init [MPI_Send_init_c] [mpi_send_init_, ompi_send_init_f]; 7, On::Comm(5), Ends::Persistent(6), SENT;
    BSEND_INIT: MPI_Bsend_init [MPI_Bsend_init_c] [mpi_bsend_init_, ompi_bsend_init_f]; 7, On::Comm(5), Ends::Persistent(6), BUFFERED;
    SSEND_INIT: MPI_Ssend_init [MPI_Ssend_init_c] [mpi_ssend_init_, ompi_ssend_init_f]; 7, On::Comm(5), Ends::Persistent(6), SENT;
    RSEND_INIT: MPI_Rsend_init [MPI_Rsend_init_c] [mpi_rsend_init_, ompi_rsend_init_f]; 7, On::Comm(5), Ends::Persistent(6), SENT;
    RECV_INIT: MPI_Recv_init [MPI_Recv_init_c] [mpi_recv_init_, ompi_recv_init_f]; 7, On::Comm(5), Ends::Persistent(6), RECEIVED;
    PSEND_INIT: MPI_Psend_init [] [mpi_psend_init_, ompi_psend_init_f]; 9, On::Comm(6), Ends::Persistent(8), SENT_IN_PARTS;
    PRECV_INIT: MPI_Precv_init [] [mpi_precv_init_, ompi_precv_init_f]; 9, On::Comm(6), Ends::Persistent(8), RECEIVED_IN_PARTS;
    PACK: MPI_Pack [MPI_Pack_c] [mpi_pack_, ompi_pack_f]; 7, On::Comm(6), Ends::Returns, PACKED;
    UNPACK: MPI_Unpack [MPI_Unpack_c] [mpi_unpack_, ompi_unpack_f]; 7, On::Comm(6), Ends::Returns, UNPACKED;
    PACK_EXTERNAL: MPI_Pack_external [MPI_Pack_external_c] []; 7, On::Nothing, Ends::Returns, PACKED_EXTERNAL;
    UNPACK_EXTERNAL: MPI_Unpack_external [MPI_Unpack_external_c] []; 7, On::Nothing, Ends::Returns, UNPACKED_EXTERNAL;
}
