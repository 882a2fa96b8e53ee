//! A node with a gRPC port, and what its two sides say.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nova_supervisor::identity::Issued;

use crate::data::h2::{Event, H2, Reply};
use crate::data::{A, App, Link, Node, Plan, RULES, Tls};

pub(crate) const RPC: u16 = 50051;
pub(crate) const GET: &str = "/orders.v1.Orders/Get";
pub(crate) const WATCH: &str = "/orders.v1.Orders/Watch";

pub(crate) fn plan() -> Plan {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let rpc = "      - {name: rpc, port: 50051, target_port: 18051, mode: mtls, protocol: grpc}\n";
    let rule = "  - id: NAME-to-a-rpc
    tenant: t
    from: {workload: NAME}
    to: {workload: service-a, port: rpc}
    grpc: {services: [orders.v1.Orders], methods: [Get, Watch]}
";
    Plan {
        endpoints: plan.endpoints.replacen(https, &format!("{rpc}{https}"), 1),
        rules: format!("{RULES}{}{}", rule.replace("NAME", "x"), rule.replace("NAME", "b")),
        ..plan
    }
}

pub(crate) fn as_x(node: &Node) -> H2<Tls> {
    call(node, &node.svid("x"))
}

pub(crate) fn call(node: &Node, who: &Issued) -> H2<Tls> {
    node.call_h2(who, RPC)
}

pub(crate) fn head<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = crate::data::h2::head("POST", path);
    fields.extend([("content-type", "application/grpc"), ("te", "trailers")]);
    fields.extend(more);
    fields
}

/// A message as gRPC frames it.
pub(crate) fn message(text: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
    bytes.extend(text.bytes());
    bytes
}

pub(crate) fn unary(h2: &mut H2<Tls>, stream: u32, path: &str) -> Reply {
    h2.headers(stream, &head(path, &[]), false);
    h2.data(stream, &message("ask"), true);
    h2.reply(stream)
}

/// What an app does with what comes on a connection.
pub(crate) type Handle = dyn Fn(&mut H2<Link>, Event, &App) + Send + Sync;

/// An app of HTTP/2 whose every connection hands what comes to `handle`.
pub(crate) fn serve(node: &Node, handle: impl Fn(&mut H2<Link>, Event, &App) + Send + Sync + 'static) {
    let handle: Arc<Handle> = Arc::new(handle);
    node.guest(A).serve(move |link, app| {
        // The check of the app's health connects and says nothing.
        let Ok(mut h2) = H2::server(link) else { return };
        app.connections.fetch_add(1, Ordering::SeqCst);
        while let Ok(event) = h2.event() {
            if let Event::Headers { fields, .. } = &event {
                app.saw(&format!("{fields:?}"));
            }
            handle(&mut h2, event, app);
        }
    });
}

/// Answers each whole call with one message and status 0.
pub(crate) fn polite(h2: &mut H2<Link>, event: Event, _: &App) {
    if let Event::Data { stream, end: true, .. } | Event::Headers { stream, end: true, .. } = event {
        h2.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
        h2.data(stream, &message("answer"), false);
        h2.headers(stream, &[("grpc-status", "0")], true);
    }
}

pub(crate) fn decoded(node: &Node) -> Vec<String> {
    node.guest(A).app.seen()
}
