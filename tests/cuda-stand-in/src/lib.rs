//! A stand-in for CUDA's driver library, on machines that have no GPU.
//!
//! It has the entry points that Strait and its tests call, with the driver's names and signatures
//! (CUDA Driver API reference manual), and is as strict: a call before `cuInit`, or without a current
//! context where one is needed, fails. Memory and handles are those of the crate `stand-in`.
//!
//! What is queued in a stream is done by the first call that asks for it when its time has come, or, behind
//! memory operations, functions of the program's and graphs, by itself. Kernels are run from their PTX (`ptx`),
//! on memory that the driver knows alone.
//!
//! | variable | |
//! |---|---|
//! | `CUDA_STAND_IN_DEVICES` | how many devices (2) |
//! | `CUDA_STAND_IN_DELAY_US` | how long each piece of work takes in a stream (0) |
//! | `CUDA_STAND_IN_FAIL` | `name=code` or `name@n=code`, with commas: calls that fail, always or the n-th time |
//! | `CUDA_STAND_IN_ROOM` | `1`: of kernels that wait for others, a process's devices have room for one at a time |
//! | `CUDA_DEVICE_MAX_CONNECTIONS` | `1`: streams made from then on share one hardware channel |
//! | `CUDA_VISIBLE_DEVICES` | numbers, with commas: as for the driver |
//!
//! In place of a call `waiting-kernel` is a kernel that waits for others: the device fails in it, behind a
//! launch without an error.
//!
//! A test in the same process calls `stand_in_fail` and `stand_in_calls`, and `stand_in_kernel`: while a
//! kernel runs cudaFree waits, and with it all other calls of the process. It sets attributes of devices
//! (`stand_in_attribute`), has streams overtake each other (`stand_in_jitter`) or share hardware channels
//! (`stand_in_channels`), and says which dma-bufs there are (`stand_in_dmabufs`, `CUDA_STAND_IN_DMABUFS`: by default none). A provider of libfabric's that
//! stands in for one of an adapter calls `stand_in_dma`
//! and `stand_in_memory_id`.
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "the driver's names; its manual is the documentation"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a test's library: every function trusts its caller as the driver does"
)]

mod attributes;
mod capture;
mod codes;
mod context;
mod device;
mod devices;
mod graph;
mod hold;
mod memop;
mod memory;
mod module;
mod node;
mod nvml;
mod pool;
mod ptx;
mod share;
mod stream;
mod strided;

/// Tests that are processes of their own.
pub mod again;
/// What a Rust test calls.
pub mod driver;

pub(crate) use codes::enter;
pub use codes::*;
pub(crate) use context::enter_in_context;
