//! How a process meets others, each mechanism once: for all that listen, over whatever they are called.
//! Nothing here knows of messages, names or keys.
//!
//! | module | what it holds |
//! |---|---|
//! | `strangers` | connections that have not shown yet what they are, in a bounded number of places |
//! | `message` | a message of a known length, of which a part has arrived |
//! | `shortage` | descriptors or memory that peers wait for; a descriptor in reserve |
//! | `life` | the process at the other end of a socket, and its end |
//! | `book` | peers by number and by name; numbers that are used again |

mod book;
mod life;
mod message;
mod refusals;
mod shortage;
mod strangers;

pub use book::Book;
pub use life::{Ended, Life};
pub use message::Message;
pub use refusals::Refusals;
pub use shortage::{Lacking, Shortage, Spare};
pub use strangers::Strangers;
