//! Prometheus text metrics on a port of their own.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_server::node::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Answers every HTTP request with the metrics, until shutdown.
pub async fn serve(listener: TcpListener, node: Arc<Node>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = node.until_shutdown() => return,
        };
        let Ok((mut stream, _)) = accepted else {
            // Out of descriptors: some come back, and asking again at once would not make it quicker.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let node = node.clone();
        tokio::spawn(async move {
            let mut request = [0u8; 2048];
            let reading = stream.read(&mut request);
            let _ = tokio::time::timeout(std::time::Duration::from_secs(5), reading).await;
            let body = text(&node);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A scraper that went away needs no answer.
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(body.as_bytes()).await;
        });
    }
}

fn text(node: &Node) -> String {
    let mut out = String::with_capacity(4096);
    let mut metric = |name: &str, kind: &str, help: &str, lines: &[(String, f64)]| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in lines {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value as f64)];
    let metrics = &node.metrics;
    let counters = &metrics.opcounters;
    let by_op = [
        ("insert", counters.insert.get()),
        ("query", counters.query.get()),
        ("update", counters.update.get()),
        ("delete", counters.delete.get()),
        ("getmore", counters.getmore.get()),
        ("command", counters.command.get()),
    ];
    let by_op: Vec<_> = by_op.iter().map(|(op, n)| (format!("{{op=\"{op}\"}}"), *n as f64)).collect();
    metric("sheaf_operations_total", "counter", "Operations since start.", &by_op);
    metric("sheaf_connections", "gauge", "Connections now.", &one(node.connection_count() as u64));
    metric(
        "sheaf_connections_created_total",
        "counter",
        "Connections since start.",
        &one(metrics.connections_created.get()),
    );
    metric("sheaf_network_bytes_in_total", "counter", "Bytes received.", &one(metrics.bytes_in.get()));
    metric("sheaf_network_bytes_out_total", "counter", "Bytes sent.", &one(metrics.bytes_out.get()));
    metric(
        "sheaf_slow_operations_total",
        "counter",
        "Operations slower than slowms.",
        &one(metrics.slow_ops.get()),
    );
    metric("sheaf_open_cursors", "gauge", "Open cursors.", &one(node.cursors.counts().open));
    metric("sheaf_sessions", "gauge", "Logical sessions.", &one(node.sessions.count() as u64));
    metric(
        "sheaf_open_transactions",
        "gauge",
        "Open transactions.",
        &one(metrics.txn.open.load(Ordering::Relaxed)),
    );
    metric(
        "sheaf_committed_transactions_total",
        "counter",
        "Committed transactions.",
        &one(metrics.txn.committed.get()),
    );
    metric(
        "sheaf_aborted_transactions_total",
        "counter",
        "Aborted transactions.",
        &one(metrics.txn.aborted.get()),
    );
    metric(
        "sheaf_resident_bytes",
        "gauge",
        "Resident memory.",
        &one(sheaf_front::system::process_memory().0),
    );
    let stats = node.engine().stats();
    metric("sheaf_cache_used_bytes", "gauge", "Block cache in use.", &one(stats.cache_used));
    metric("sheaf_memtable_bytes", "gauge", "Memory of unflushed writes.", &one(stats.memtable_bytes));
    metric("sheaf_log_bytes", "gauge", "Size of the log.", &one(stats.log_bytes));
    metric(
        "sheaf_log_appended_bytes_total",
        "counter",
        "Bytes appended to the log.",
        &one(stats.log_append_bytes),
    );
    metric("sheaf_log_syncs_total", "counter", "Syncs of the log.", &one(stats.log_syncs));
    metric("sheaf_commits_total", "counter", "Commit groups.", &one(stats.commits));
    metric("sheaf_write_conflicts_total", "counter", "Write conflicts.", &one(stats.conflicts));
    metric("sheaf_data_file_bytes", "gauge", "Size of data files.", &one(stats.sst_bytes));
    out
}
