//! BSON to values of JavaScript.

use rquickjs::object::Property;
use rquickjs::{Array, Ctx, Function, Object, Result, Value as Js};
use sheaf_bson::{RawDoc, Value};

/// The name under which an object made of a document says which it was made of.
pub(crate) const SOURCE: &str = "$source";

/// Makes values of JavaScript. `sources` gets the documents whose types a function may hand back; `None` where nothing comes back but a truth.
pub(crate) struct ToJs<'s, 'js, 'b> {
    pub(crate) ctx: &'s Ctx<'js>,
    pub(crate) makers: &'s Object<'js>,
    pub(crate) sources: Option<&'s mut Vec<RawDoc<'b>>>,
    /// The number of this call: what earlier calls were given is gone.
    pub(crate) call: u32,
}

impl<'js, 'b> ToJs<'_, 'js, 'b> {
    /// A value; what is missing is `undefined`.
    pub(crate) fn value(&mut self, value: Value<'b>) -> Result<Js<'js>> {
        let ctx = self.ctx.clone();
        Ok(match value {
            Value::Missing | Value::Undefined => Js::new_undefined(ctx),
            Value::Null => Js::new_null(ctx),
            Value::Bool(truth) => Js::new_bool(ctx, truth),
            Value::Int32(n) => Js::new_int(ctx, n),
            Value::Double(n) => Js::new_number(ctx, n),
            Value::Int64(n) => {
                let exact = Js::new_big_int(ctx, n)?;
                self.make("long", (exact,))?
            }
            Value::Decimal128(n) => self.make("decimal", (n.to_string(),))?,
            Value::String(text) | Value::Symbol(text) => rquickjs::String::from_str(ctx, text)?.into_value(),
            Value::Document(doc) => self.document(doc)?.into_value(),
            Value::Array(array) => {
                let made = Array::new(ctx)?;
                for (at, item) in array.values().enumerate() {
                    made.set(at, self.value(item)?)?;
                }
                made.into_value()
            }
            Value::Binary(binary) => self.make("binary", (i32::from(binary.subtype), hex(binary.bytes)))?,
            Value::ObjectId(id) => self.make("objectId", (hex(&id.0),))?,
            Value::DateTime(millis) => self.make("date", (millis as f64,))?,
            Value::Timestamp(time) => {
                self.make("timestamp", (f64::from(time.seconds()), f64::from(time.increment())))?
            }
            Value::Regex(regex) => self.make("regex", (regex.pattern, regex.options))?,
            Value::DbPointer(pointer) => {
                let id = self.value(Value::ObjectId(pointer.id))?;
                self.make("pointer", (pointer.namespace, id))?
            }
            Value::JavaScript(code) => self.make("code", (code,))?,
            Value::CodeWithScope(code) => {
                let scope = self.document(code.scope)?;
                self.make("code", (code.code, scope))?
            }
            Value::MinKey => self.make("minKey", ())?,
            Value::MaxKey => self.make("maxKey", ())?,
        })
    }

    /// A document.
    pub(crate) fn document(&mut self, doc: RawDoc<'b>) -> Result<Object<'js>> {
        let object = Object::new(self.ctx.clone())?;
        for element in doc.iter() {
            let value = self.value(element.value())?;
            let key = element.key();
            if key == "__proto__" {
                // Set, it would be the object's prototype.
                object.prop(key, Property::from(value).writable().configurable().enumerable())?;
            } else {
                object.set(key, value)?;
            }
        }
        if let Some(sources) = self.sources.as_deref_mut() {
            let number = f64::from(self.call) * SOURCES_A_CALL + sources.len() as f64;
            sources.push(doc);
            object.prop(SOURCE, number)?;
        }
        Ok(object)
    }

    fn make<A: rquickjs::function::IntoArgs<'js>>(&self, maker: &str, args: A) -> Result<Js<'js>> {
        self.makers.get::<_, Function<'js>>(maker)?.call(args)
    }
}

/// Documents of one call are numbered below this.
pub(crate) const SOURCES_A_CALL: f64 = 1_048_576.0;

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}
