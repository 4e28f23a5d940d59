//! `libstrait_mpi.so`: the MPI of a program takes device memory in every call.
//!
//! It is preloaded, or linked before the MPI, and interposes the calls that have buffers. A call whose
//! buffers are all host memory goes straight on to the MPI. For a buffer in device memory the MPI gets host
//! memory with the same layout, a mirror: what the call reads is copied there before, what it writes is
//! copied back after. So every such call is the MPI's own, with its own algorithms, datatypes and operations,
//! and processes need not agree on anything. Collectives that all ranks pass device memory to may go by NCCL.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | what differs between the interfaces of Open MPI, MPICH and MPI 5 |
//! | `library` | which MPI is in the process, and its functions |
//! | `row`, `table`, `entry` | the calls: their buffers, and what is done to them; entry points |
//! | `host` | which addresses cannot be device memory |
//! | `args`, `fortran`, `group` | the arguments of a call, in C and in Fortran |
//! | `shape` | datatypes, flattened |
//! | `buffer` | mirrors, copies between them and devices, waiting for a device |
//! | `call` | a call with a buffer in device memory |
//! | `posted`, `collective` | collectives of device memory by NCCL |
//! | `direct` | whether the MPI's transport takes device memory |
//! | `narrow` | calls for large counts under an MPI that has none |
//! | `requests`, `splits`, `windows` | what is to be done when an operation, or an epoch, ends |
//! | `hooks` | the calls that end them |
//! | `refuse`, `counts`, `report`, `stderr` | errors; what was done |
//! | `settings` | the environment |

mod abi;
mod args;
mod buffer;
mod call;
mod collective;
mod counts;
mod direct;
mod entry;
mod fortran;
mod group;
mod hooks;
mod host;
mod library;
mod narrow;
mod posted;
mod refuse;
mod report;
mod requests;
mod row;
mod settings;
mod shape;
mod splits;
mod stderr;
mod table;
mod windows;
mod words;
