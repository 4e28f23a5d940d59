//! Why a device does not do what was asked.

use std::fmt;

use hmem::cuda::NotLoaded;

use crate::types::{Op, Type};

/// Why a device does not do what was asked. Each is a sentence that says what to do.
#[derive(Clone, Debug)]
pub enum Error {
    /// The operation is not defined for the type.
    Undefined(Op, Type),
    /// An argument that no work can be made of.
    Argument(String),
    /// A call of the driver failed.
    Driver {
        /// What was to be done.
        what: &'static str,
        /// The driver's code.
        error: hmem::Error,
    },
    /// The driver does not take a kernel.
    NotCompiled {
        /// The kernel.
        kernel: String,
        /// What the driver said.
        cause: NotLoaded,
    },
}

impl Error {
    /// The driver's code, where it was the driver that refused.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Driver { error, .. } => Some(error.code),
            Error::NotCompiled { cause, .. } => Some(cause.error.0),
            Error::Undefined(..) | Error::Argument(_) => None,
        }
    }
}

/// What makes an error of the driver's one of a call here.
pub(crate) fn driver<E: Into<hmem::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Driver { what, error: error.into() }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Undefined(op, ty) => {
                write!(
                    f,
                    "the operation {op:?} is not defined for elements of type {ty:?}: reduce on the host"
                )
            }
            Error::Argument(why) => f.write_str(why),
            Error::Driver { what, error } => {
                write!(f, "{what} failed: {error}; an earlier error of the context is returned here too")
            }
            Error::NotCompiled { kernel, cause } => {
                write!(f, "the driver does not take the kernel {kernel}: {cause}; use the host for this")
            }
        }
    }
}

impl std::error::Error for Error {}
