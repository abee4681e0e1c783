//! Cycles of dependencies that snapshot isolation forbids, each by its name.
//!
//! A cycle is allowed only if two anti-dependencies follow each other in it. To find the others, each anti-dependency is
//! drawn together with the dependency before it as one step: the cycles of the graph of dependencies and such double
//! steps are exactly the forbidden ones. So one search for strongly connected components tells whether there is any.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Anomaly;
use super::graph::{Dependencies, Edge, Kind, components};

/// A step of the graph that is searched: one edge, or a dependency and the anti-dependency behind it.
type Step = (Edge, Option<Edge>);

/// Most nodes of a component from which a short cycle is looked for.
const STARTS: usize = 50;

/// One cycle of each component that has one, at each level from the worst name to the weakest; `explain` puts an edge into
/// words.
pub(super) fn find_cycles(graph: &Dependencies, explain: impl Fn(&Edge) -> String) -> Vec<Anomaly> {
    let mut found = Vec::new();
    // Transactions of cycles that have their name already.
    let mut named = BTreeSet::new();
    let levels: [(&[Kind], bool); 5] = [
        (&[Kind::WriteWrite], false),
        (&[Kind::WriteWrite, Kind::WriteRead], false),
        (&[Kind::WriteWrite, Kind::WriteRead], true),
        (&[Kind::WriteWrite, Kind::WriteRead, Kind::Session], false),
        (&[Kind::WriteWrite, Kind::WriteRead, Kind::Session], true),
    ];
    for (kinds, anti) in levels {
        let ends = |node| steps(graph, node, kinds, anti).map(|step| end(&step)).collect();
        let next: Vec<Vec<u32>> = (0..graph.nodes() as u32).map(ends).collect();
        for component in components(graph.nodes(), &next) {
            if component.iter().any(|node| named.contains(node)) {
                continue;
            }
            let steps = |node| steps(graph, node, kinds, anti);
            if let Some(cycle) = shortest(steps, &component) {
                named.extend(component);
                named.extend(cycle.iter().map(|edge| edge.from));
                let words: Vec<String> = cycle.iter().map(&explain).collect();
                found.push(Anomaly { kind: name(&cycle), text: words.join(", ") });
            }
        }
    }
    found
}

fn end((edge, anti): &Step) -> u32 {
    anti.as_ref().map_or(edge.to, |anti| anti.to)
}

/// The steps from a node.
fn steps<'g>(
    graph: &'g Dependencies,
    node: u32,
    kinds: &'g [Kind],
    anti: bool,
) -> impl Iterator<Item = Step> + 'g {
    let edges = graph.from(node).iter().filter(|edge| kinds.contains(&edge.kind));
    edges.flat_map(move |edge| {
        let behind = graph.from(edge.to).iter().filter(move |behind| anti && behind.kind == Kind::ReadWrite);
        std::iter::once((*edge, None)).chain(behind.map(|behind| (*edge, Some(*behind))))
    })
}

/// The shortest cycle within a component, as edges; a step back to where it came from is a cycle of two.
fn shortest<I: Iterator<Item = Step>>(steps: impl Fn(u32) -> I, component: &[u32]) -> Option<Vec<Edge>> {
    let within: BTreeSet<u32> = component.iter().copied().collect();
    let mut best: Option<Vec<Edge>> = None;
    for &start in component.iter().take(STARTS) {
        let mut came: BTreeMap<u32, (u32, Step)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        'search: while let Some(node) = queue.pop_front() {
            for step in steps(node) {
                let to = end(&step);
                if to == start {
                    let cycle = unwind(&came, start, node, step);
                    if best.as_ref().is_none_or(|best| weight(&cycle) < weight(best)) {
                        best = Some(cycle);
                    }
                    break 'search;
                }
                if within.contains(&to) && !came.contains_key(&to) {
                    came.insert(to, (node, step));
                    queue.push_back(to);
                }
            }
        }
    }
    best
}

/// Fewer anti-dependencies make the worse anomaly; then the shorter one is easier to read.
fn weight(cycle: &[Edge]) -> (usize, usize) {
    (cycle.iter().filter(|edge| edge.kind == Kind::ReadWrite).count(), cycle.len())
}

fn unwind(came: &BTreeMap<u32, (u32, Step)>, start: u32, last: u32, closing: Step) -> Vec<Edge> {
    let mut steps = vec![closing];
    let mut at = last;
    while at != start {
        let (before, step) = came[&at];
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps.into_iter().flat_map(|(edge, anti)| std::iter::once(edge).chain(anti)).collect()
}

fn name(cycle: &[Edge]) -> &'static str {
    let count = |kind: Kind| cycle.iter().filter(|edge| edge.kind == kind).count();
    let (anti, session) = (count(Kind::ReadWrite), count(Kind::Session) > 0);
    match (anti, session) {
        (0, false) if count(Kind::WriteRead) == 0 => "G0",
        (0, false) => "G1c",
        (0, true) => "G1c-session",
        (1, false) => "G-single",
        (1, true) => "G-single-session",
        (_, false) => "G-nonadjacent",
        (_, true) => "G-nonadjacent-session",
    }
}
