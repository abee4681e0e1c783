//! Shapes and what lies in them.

use proptest::prelude::*;
use sheaf_bson::{DocBuf, doc};

use super::*;

fn predicate(kind: Kind, operand: DocBuf) -> Predicate {
    let filter = doc! { "$geo": &operand };
    Predicate::parse(kind, filter.as_raw().iter().next().unwrap()).unwrap()
}

fn passes(predicate: &Predicate, geometry: DocBuf) -> bool {
    let doc = doc! { "g": &geometry };
    predicate.matches(doc.as_raw().get("g").unwrap()).unwrap()
}

fn point(x: f64, y: f64) -> DocBuf {
    doc! { "type": "Point", "coordinates": [x, y] }
}

#[test]
fn edges_belong_to_polygons_of_the_sphere() {
    let square = doc! { "$geometry": { "type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]] } };
    let within = predicate(Kind::Within, square);
    assert!(passes(&within, point(5.0, 5.0)));
    assert!(passes(&within, point(0.0, 0.0)));
    assert!(passes(&within, point(10.0, 5.0)));
    assert!(!passes(&within, point(-0.001, 5.0)));
}

#[test]
fn a_strict_ring_may_go_around_most_of_the_earth() {
    let crs = doc! { "type": "name", "properties": { "name": "urn:x-mongodb:crs:strictwinding:EPSG:4326" } };
    let ring = doc! { "$geometry": {
        "type": "Polygon", "crs": &crs, "coordinates": [[[-10, -10], [-10, 10], [10, 10], [10, -10], [-10, -10]]],
    } };
    let within = predicate(Kind::Within, ring);
    assert!(!passes(&within, point(0.0, 0.0)));
    assert!(passes(&within, point(120.0, 50.0)));
}

#[test]
fn the_distance_of_a_degree() {
    let near = Near::around(doc! { "p": &point(0.0, 0.0) }.as_raw().get("p").unwrap(), true).unwrap();
    let doc = doc! { "p": &point(1.0, 0.0) };
    let (distance, _) = near.nearest(doc.as_raw().get("p").unwrap()).unwrap().unwrap();
    assert!((distance - EARTH_RADIUS.to_radians()).abs() < 1e-6);
}

proptest! {
    /// A cap and the distance from its centre say the same.
    #[test]
    fn caps_hold_what_is_near(x in -180.0..180.0f64, y in -90.0..90.0f64, px in -180.0..180.0f64, py in -90.0..90.0f64,
            radius in 0.0..3.2f64) {
        let center = PlanePoint { x, y };
        let near = Near::around(doc! { "p": [x, y] }.as_raw().get("p").unwrap(), true).unwrap();
        let doc = doc! { "p": [px, py] };
        let distance = near.nearest(doc.as_raw().get("p").unwrap()).unwrap().unwrap().0;
        prop_assume!((distance - radius).abs() > 1e-7);
        let within = predicate(Kind::Within, doc! { "$centerSphere": [[center.x, center.y], radius] });
        prop_assert_eq!(passes(&within, point(px, py)), distance < radius);
    }

    /// Small rings hold the points of their boxes, nearly: geodesics bulge.
    #[test]
    fn small_squares(x in -170.0..170.0f64, y in -80.0..80.0f64, dx in -1.0..1.0f64, dy in -1.0..1.0f64) {
        let (w, h) = (0.5, 0.5);
        prop_assume!((dx.abs() - w).abs() > 0.02 && (dy.abs() - h).abs() > 0.02);
        let ring = [[x - w, y - h], [x + w, y - h], [x + w, y + h], [x - w, y + h], [x - w, y - h]];
        let ring: Vec<_> = ring.iter().map(|p| sheaf_bson::ArrayBuf::build(|a| { a.push(p[0]); a.push(p[1]); })).collect();
        let coordinates = sheaf_bson::ArrayBuf::build(|a| { a.push(&sheaf_bson::ArrayBuf::build(|b| for p in &ring { b.push(p); })); });
        let within = predicate(Kind::Within, doc! { "$geometry": { "type": "Polygon", "coordinates": &coordinates } });
        prop_assert_eq!(passes(&within, point(x + dx, y + dy)), dx.abs() < w && dy.abs() < h);
    }
}
