//! Which devices there are.

/// The machine's number of each device that is visible.
pub(crate) fn visible() -> Vec<u32> {
    let all: u32 = std::env::var("CUDA_STAND_IN_DEVICES").ok().and_then(|v| v.parse().ok()).unwrap_or(2);
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => list.split(',').map_while(|n| n.trim().parse().ok()).filter(|n| *n < all).collect(),
        Err(_) => (0..all).collect(),
    }
}

pub(crate) fn uuid(number: u32) -> [u8; 16] {
    let mut uuid = *b"stand-in device ";
    uuid[15] = number as u8;
    uuid
}
