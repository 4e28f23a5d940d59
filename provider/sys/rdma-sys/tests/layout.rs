//! Compares the bindings with what the C compiler makes of the header that is installed.
//!
//! Older headers lack what was appended since. Offsets into `verbs_context`, which grows at its beginning, are
//! counted from its end. Without a compiler or the header there is nothing to compare with, and the test says so.

use std::mem::{offset_of, size_of};
use std::process::Command;

use rdma_sys::*;

macro_rules! offsets {
    ($($of:ident: $($field:ident),*;)*) => {
        vec![$($((stringify!($of), stringify!($field), offset_of!($of, $field)),)*)*]
    };
}

#[test]
fn offsets_are_those_of_the_installed_header() {
    let fields = offsets! {
        ibv_wc: wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, slid, dlid_path_bits;
        ibv_sge: addr, length, lkey;
        ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type;
        ibv_recv_wr: wr_id, next, sg_list, num_sge;
        ibv_qp_attr: qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, pkey_index,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, rate_limit;
        ibv_qp_init_attr: send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
        ibv_ah_attr: grh, dlid, sl, is_global, port_num;
        ibv_qp: context, qp_num, state, events_completed;
        ibv_cq: context, channel, cq_context, cqe, async_events_completed;
        ibv_srq: srq_context, events_completed;
        ibv_mr: addr, length, lkey, rkey;
        ibv_port_attr: state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer, port_cap_flags2;
        ibv_device_attr: max_mr_size, max_qp, atomic_cap, max_srq_sge, phys_port_cnt;
        ibv_device_attr_ex: comp_mask, odp_caps, phys_port_cnt_ex;
        ibv_gid_entry: gid_index, gid_type, ndev_ifindex;
        ibv_device: transport_type, name, ibdev_path;
        ibv_comp_channel: fd;
        ibv_async_event: element, event_type;
        ibv_context: ops, async_fd, num_comp_vectors, abi_compat;
        ibv_context_ops: poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv;
    };
    let mut lines: Vec<String> =
        fields.into_iter().map(|(of, field, at)| format!("offsetof(struct {of}, {field}) == {at}")).collect();
    let end = size_of::<verbs_context>();
    for (of, field, at) in offsets! { verbs_context: query_port, query_device_ex, sz, context; } {
        let left = end - at;
        lines.push(format!("sizeof(struct {of}) - offsetof(struct {of}, {field}) == {left}"));
    }
    compare("infiniband/verbs.h", "verbs", &lines);
}

/// Has the C compiler say whether each of these is so, where it is there and has the header, in its own
/// directories or in that of `STRAIT_TEST_RDMA_HEADERS`: a directory with `infiniband` and `rdma` in it.
fn compare(header: &str, name: &str, lines: &[String]) {
    let file = std::env::temp_dir().join(format!("rdma-sys-layout-{name}-{}.c", std::process::id()));
    let include = format!("#include <{header}>\n");
    std::fs::write(&file, &include).unwrap();
    let directory = std::env::var("STRAIT_TEST_RDMA_HEADERS").unwrap_or_else(|_| "/usr/include".into());
    let compile =
        || Command::new("cc").args(["-w", "-fsyntax-only", "-idirafter", &directory]).arg(&file).output();
    if !compile().is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: no C compiler, or no {header}");
    } else {
        let asserts: String =
            lines.iter().map(|line| format!("_Static_assert({line}, \"it is\");\n")).collect();
        std::fs::write(&file, format!("#include <stddef.h>\n{include}{asserts}")).unwrap();
        let out = compile().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn offsets_of_connections_are_those_of_the_installed_header() {
    use rdma_sys::cm_bindings::*;
    let fields = offsets! {
        rdma_event_channel: fd;
        rdma_cm_id: verbs, channel, context;
        rdma_conn_param: private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num;
        rdma_cm_event: id, listen_id, event, status;
    };
    let mut lines: Vec<String> =
        fields.into_iter().map(|(of, field, at)| format!("offsetof(struct {of}, {field}) == {at}")).collect();
    lines.push(format!("offsetof(struct rdma_cm_event, param) == {}", offset_of!(rdma_cm_event, conn)));
    lines.push(format!("sizeof(struct rdma_conn_param) == {}", size_of::<rdma_conn_param>()));
    let constants = [
        ("RDMA_CM_EVENT_ADDR_RESOLVED", RDMA_CM_EVENT_ADDR_RESOLVED),
        ("RDMA_CM_EVENT_ADDR_ERROR", RDMA_CM_EVENT_ADDR_ERROR),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", RDMA_CM_EVENT_ROUTE_RESOLVED),
        ("RDMA_CM_EVENT_ROUTE_ERROR", RDMA_CM_EVENT_ROUTE_ERROR),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", RDMA_CM_EVENT_CONNECT_REQUEST),
        ("RDMA_CM_EVENT_CONNECT_ERROR", RDMA_CM_EVENT_CONNECT_ERROR),
        ("RDMA_CM_EVENT_UNREACHABLE", RDMA_CM_EVENT_UNREACHABLE),
        ("RDMA_CM_EVENT_REJECTED", RDMA_CM_EVENT_REJECTED),
        ("RDMA_CM_EVENT_ESTABLISHED", RDMA_CM_EVENT_ESTABLISHED),
        ("RDMA_CM_EVENT_DISCONNECTED", RDMA_CM_EVENT_DISCONNECTED),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", RDMA_CM_EVENT_DEVICE_REMOVAL),
        ("RDMA_PS_TCP", RDMA_PS_TCP),
    ];
    lines.extend(constants.map(|(name, value)| format!("{name} == {value}")));
    compare("rdma/rdma_cma.h", "cm", &lines);
}
