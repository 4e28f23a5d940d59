//! Files to memory of any kind and back: a device's windows, a GPU's memory, the host's.
//!
//! | way | |
//! |---|---|
//! | [`Way::Direct`] | O_DIRECT, the disk's DMA: windows that the disk reaches, and host memory |
//! | [`Way::Cufile`] | NVIDIA's cuFile, where the process may load it: CUDA's memory |
//! | [`Way::Bounce`] | several bounce buffers of host memory, page-locked for the device that copies |
//! | [`Way::Cached`] | the page cache: host memory that is not aligned |
//!
//! Which way was taken, for how many bytes, and why no better one, says [`File::report`].

mod bounce;
mod cufile;
mod cufile_words;
mod file;
mod many;
mod open;
mod outcome;
mod report;
mod request;
mod stream;
mod workers;

pub use file::{File, Op, Options};
pub use outcome::Results;
pub use report::{Report, Way};
pub use request::Request;
