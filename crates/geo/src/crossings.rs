//! Edges of a polygon that cross each other.
//!
//! S2's own search gathers all crossings before it looks at the first, and cannot be stopped. Of edges that are long and close
//! together, like a comb's, there are as many pairs as the square of their number.

use s2rst::s2::Polygon;
use s2rst::s2::edge_crosser::EdgeCrosser;
use s2rst::s2::edge_crossings::Crossing;
use s2rst::s2::shape::{Edge, Shape};
use s2rst::s2::shape_index::ShapeIndexCell;
use sheaf_errors::Result;

/// What a test of two edges costs, in units of the meter.
const TEST: u32 = 1;

/// Whether two edges cross between their ends.
///
/// Errors: what the meter says.
pub(crate) fn has_crossing(polygon: &Polygon) -> Result<bool> {
    let index = polygon.shape_index();
    let Some(shape) = index.shape(0) else { return Ok(false) };
    let mut edges = Vec::new();
    let mut cells = index.iter();
    while !cells.done() {
        if let Some(cell) = cells.index_cell() {
            edges_of(shape, cell, &mut edges);
            if crosses_within(&edges)? {
                return Ok(true);
            }
        }
        cells.next();
    }
    Ok(false)
}

/// The edges that a cell of the index has, in the order of their rings.
fn edges_of(shape: &dyn Shape, cell: &ShapeIndexCell, edges: &mut Vec<Edge>) {
    edges.clear();
    for clipped in &cell.shapes {
        let of_shape = clipped.edges.iter().filter_map(|edge| usize::try_from(*edge).ok());
        edges.extend(of_shape.map(|edge| shape.edge(edge)));
    }
}

fn crosses_within(edges: &[Edge]) -> Result<bool> {
    for (at, edge) in edges.iter().enumerate() {
        let mut crosser = EdgeCrosser::new(edge.v0, edge.v1);
        for other in &edges[at + 1..] {
            sheaf_meter::tick(TEST)?;
            if crosser.crossing_sign(other.v0, other.v1) == Crossing::Cross {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether two rings have a vertex in common.
pub(crate) fn rings_touch(polygon: &Polygon) -> bool {
    let mut vertices: Vec<([u64; 3], usize)> = Vec::new();
    for (ring, vertex) in polygon
        .loops()
        .iter()
        .enumerate()
        .flat_map(|(at, ring)| ring.vertices().iter().map(move |vertex| (at, vertex)))
    {
        vertices.push(([vertex.x().to_bits(), vertex.y().to_bits(), vertex.z().to_bits()], ring));
    }
    vertices.sort_unstable();
    vertices.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use s2rst::s2::{LatLng, Loop, Point};

    use super::*;

    fn at(degrees: &(i32, i32)) -> Point {
        Point::from(LatLng::from_degrees(f64::from(degrees.0), f64::from(degrees.1)))
    }

    /// Vertices of a grid, none twice.
    fn ring() -> impl Strategy<Value = Vec<(i32, i32)>> {
        let vertices = proptest::collection::btree_set((-4..5i32, -4..5i32), 3..12);
        vertices.prop_map(|vertices| vertices.into_iter().collect::<Vec<_>>()).prop_shuffle()
    }

    fn polygon(rings: &[Vec<(i32, i32)>]) -> Polygon {
        let made = rings.iter().map(|ring| {
            let mut made = Loop::new(ring.iter().map(at).collect());
            made.normalize();
            made
        });
        Polygon::from_loops(made.collect())
    }

    proptest! {
        /// S2 finds the same faults.
        #[test]
        fn a_ring_that_crosses_itself(ring in ring()) {
            let polygon = polygon(&[ring]);
            prop_assert_eq!(has_crossing(&polygon).unwrap(), polygon.find_validation_error().is_some());
        }

        #[test]
        fn rings_that_cross(outer in ring(), inner in ring()) {
            let polygon = polygon(&[outer, inner]);
            let found = has_crossing(&polygon).unwrap()
                || rings_touch(&polygon) && polygon.find_validation_error().is_some();
            prop_assert_eq!(found, polygon.find_validation_error().is_some());
        }
    }

    /// Ten thousand long edges side by side, and one across.
    #[test]
    fn the_first_crossing_ends_the_search() {
        let zigzag = (0..10_000).map(|n| (if n % 2 == 0 { -40.0 } else { 40.0 }, f64::from(n) * 0.004));
        let points = zigzag.map(|(lat, lng)| Point::from(LatLng::from_degrees(lat, lng))).collect();
        assert!(has_crossing(&Polygon::from_loops(vec![Loop::new(points)])).unwrap());
    }
}
