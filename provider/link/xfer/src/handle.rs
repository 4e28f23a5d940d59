//! Handles of devices' memory in frames.

use hmem::share::Export;
use wire::Handle;

/// A handle as frames have it.
pub fn to_wire(export: &Export) -> Handle {
    zerocopy::transmute!(export.to_bytes())
}

/// What a peer's handle says; `None` if it is of an unknown kind, or of memory that cannot be.
pub fn from_wire(handle: &Handle) -> Option<Export> {
    Export::from_bytes(zerocopy::transmute_ref!(handle))
}

#[cfg(test)]
mod tests {
    use hmem::share::HandleType;

    use super::*;

    fn export() -> Export {
        let (handle_type, device, token) = (HandleType::Descriptor, [6; 16], [7; 64]);
        Export { handle_type, fd: -2, id: 3, base: 4, len: 5, device, token }
    }

    #[test]
    fn frames_and_keys_have_the_same_fields_in_the_same_places() {
        let handle = to_wire(&export());
        assert_eq!((handle.how, handle.zero), (HandleType::Descriptor as u8, [0; 3]));
        assert_eq!((handle.fd.get() as i32, handle.id.get()), (-2, 3));
        assert_eq!((handle.base.get(), handle.len.get()), (4, 5));
        assert_eq!((handle.device, handle.token), ([6; 16], [7; 64]));
        assert_eq!(from_wire(&handle), Some(export()));
    }

    #[test]
    fn a_handle_of_memory_that_cannot_be_is_refused() {
        let good = to_wire(&export());
        for (bad, why) in [
            (Handle { how: 0, ..good }, "an unknown kind"),
            (Handle { zero: [0, 1, 0], ..good }, "bytes that are to be 0"),
            (Handle { len: 0.into(), ..good }, "no bytes"),
            (Handle { base: u64::MAX.into(), ..good }, "beyond the end of all addresses"),
        ] {
            assert_eq!(from_wire(&bad), None, "{why}");
        }
    }
}
