//! The text of kernels.
//!
//! Registers are of bits alone (`.b32`), and numbers of 8 and 16 bits are kept in registers of 32. Floating
//! point operations name their rounding (`.rn`): without it, the compiler of the driver may make one fused
//! multiply-add of two of them.
//! Source: the PTX ISA reference, NVIDIA.

mod element;
mod pack;
pub(crate) mod pair;
mod product;
mod reduce;
mod text;

pub(crate) use pack::{Direction, LEVELS, PackKernel};
pub(crate) use pair::PairKernel;
pub(crate) use reduce::{Access, ReduceKernel};
