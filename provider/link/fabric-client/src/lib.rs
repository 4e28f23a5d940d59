//! libfabric as a client sees it: loaded at run time, what it offers, and its objects, closed when dropped.
//!
//! Only functions that every libfabric 1.x has are used, and no field that came later than 1.14 is
//! read or written: the library may be older than the headers the bindings are from.

mod error;
mod infos;
mod library;
mod object;

pub use error::Error;
pub use infos::{Infos, fabric_of, provider_of};
pub use library::{Info, Library, Param, Want, manual, version_text};
pub use object::{Fid, Object, Objects, Queue, done, made, open_domain, step};
