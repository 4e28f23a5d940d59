//! The link over TCP, put to the checks.

use crate::tcp::TcpHarness;

mod v4 {
    use super::TcpHarness;

    link_kit::conform! {
        TcpHarness::new("127.0.0.1:0");
        frames polls peers ends returns host hostile sleep threads frames_only
    }
}

mod v6 {
    use super::TcpHarness;

    link_kit::conform! { TcpHarness::new("[::1]:0"); frames host returns }
}

mod rails {
    use super::TcpHarness;

    link_kit::conform! {
        TcpHarness::with_rails("127.0.0.1:0", &[[127, 0, 0, 2], [127, 0, 0, 3]]);
        frames polls peers ends returns host hostile sleep threads frames_only
    }
}
