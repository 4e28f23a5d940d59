//! Memory of devices: by handles, staged, and by way of bounce buffers.

mod bounce;
mod device;
mod handles;
mod staged;
