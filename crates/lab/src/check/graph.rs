//! Which transaction depends on which.

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// It wrote the version before the other's.
    WriteWrite,
    /// It wrote what the other read.
    WriteRead,
    /// It read what the other overwrote: an anti-dependency.
    ReadWrite,
    /// The same client ran it first.
    Session,
}

/// `from` comes before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: u32,
    pub to: u32,
    pub kind: Kind,
    /// The key that both met at; nothing for [`Kind::Session`].
    pub key: i64,
}

/// A graph of transactions, by their place in the history.
pub(super) struct Dependencies {
    out: Vec<Vec<Edge>>,
    count: usize,
}

impl Dependencies {
    pub fn new(transactions: usize) -> Dependencies {
        Dependencies { out: vec![Vec::new(); transactions], count: 0 }
    }

    /// Adds an edge. That a transaction depends on itself says nothing.
    pub fn add(&mut self, edge: Edge) {
        if edge.from != edge.to {
            self.out[edge.from as usize].push(edge);
            self.count += 1;
        }
    }

    pub fn nodes(&self) -> usize {
        self.out.len()
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn from(&self, node: u32) -> &[Edge] {
        &self.out[node as usize]
    }
}

/// The strongly connected components that hold a cycle (more than one node, or one that is behind itself), by Tarjan's
/// algorithm, without recursion: histories are long. `next` gives the nodes behind a node.
pub(super) fn components(nodes: usize, next: &[Vec<u32>]) -> Vec<Vec<u32>> {
    const UNSEEN: u32 = u32::MAX;
    let (mut index, mut low) = (vec![UNSEEN; nodes], vec![0u32; nodes]);
    let (mut on_stack, mut stack, mut found) = (vec![false; nodes], Vec::new(), Vec::new());
    let mut counter = 0;
    for root in 0..nodes as u32 {
        if index[root as usize] != UNSEEN {
            continue;
        }
        // Node, and how many of its edges have been followed.
        let mut path: Vec<(u32, usize)> = vec![(root, 0)];
        while let Some((node, followed)) = path.last_mut() {
            let at = *node as usize;
            if *followed == 0 {
                index[at] = counter;
                low[at] = counter;
                counter += 1;
                stack.push(*node);
                on_stack[at] = true;
            }
            if let Some(&behind) = next[at].get(*followed) {
                *followed += 1;
                if index[behind as usize] == UNSEEN {
                    path.push((behind, 0));
                } else if on_stack[behind as usize] {
                    low[at] = low[at].min(index[behind as usize]);
                }
                continue;
            }
            path.pop();
            if let Some((above, _)) = path.last() {
                low[*above as usize] = low[*above as usize].min(low[at]);
            }
            if low[at] == index[at] {
                let mut component = Vec::new();
                while let Some(member) = stack.pop() {
                    on_stack[member as usize] = false;
                    component.push(member);
                    if member as usize == at {
                        break;
                    }
                }
                if component.len() > 1 || next[at].contains(&(at as u32)) {
                    component.sort_unstable();
                    found.push(component);
                }
            }
        }
    }
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_found() {
        let next = vec![vec![1], vec![2], vec![0, 3], vec![4], vec![5], vec![4], vec![], vec![7]];
        assert_eq!(components(8, &next), [vec![0, 1, 2], vec![4, 5], vec![7]]);
        // A long chain, which would be too deep for recursion.
        let long: Vec<Vec<u32>> = (0..300_000u32).map(|n| vec![(n + 1) % 300_000]).collect();
        assert_eq!(components(300_000, &long)[0].len(), 300_000);
    }
}
