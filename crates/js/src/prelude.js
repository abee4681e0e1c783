// What functions find besides the language: BSON's types as MongoDB's shell has them, and its helpers. Evaluated once in every
// sandbox. Its value is what the Rust side calls: makers of values, by the number of their BSON type.
(function () {
    "use strict";
    const hide = (object, name, value) => Object.defineProperty(object, name, { value, enumerable: false, writable: true, configurable: true });
    const define = (name, value) => hide(globalThis, name, value);
    // `tag` is the BSON type by which the Rust side knows a value; `$v` holds what it is made of.
    const kind = (maker, tag, methods) => {
        hide(maker.prototype, "$bson", tag);
        for (const name of Object.keys(methods)) hide(maker.prototype, name, methods[name]);
        define(maker.name, maker);
        return maker;
    };
    const fail = (what) => { throw new Error(what); };
    const randomHex = (digits) => Array.from({ length: digits }, () => "0123456789abcdef"[Math.floor(Math.random() * 16)]).join("");
    const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const toBase64 = (hex) => {
        let text = "";
        for (let at = 0; at < hex.length; at += 6) {
            const part = hex.slice(at, at + 6);
            const bits = parseInt(part.padEnd(6, "0"), 16);
            for (let place = 0; place < 4; place++) text += place * 3 >= part.length * 2 ? "=" : BASE64[(bits >> (18 - 6 * place)) & 63];
        }
        return text;
    };
    const fromBase64 = (text) => {
        if (!/^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)) return null;
        let hex = "";
        for (let at = 0; at < text.length; at += 4) {
            const part = text.slice(at, at + 4).replace(/=+$/, "");
            let bits = 0;
            for (let place = 0; place < 4; place++) bits = (bits << 6) | (place < part.length ? BASE64.indexOf(part[place]) : 0);
            hex += (bits >>> 0).toString(16).padStart(6, "0").slice(0, (part.length - 1) * 2);
        }
        return hex;
    };

    function NumberLong(value, low) {
        if (!(this instanceof NumberLong)) return new NumberLong(...arguments);
        let exact;
        if (value === undefined) exact = 0n;
        else if (typeof value === "bigint") exact = value;
        else if (typeof value === "string") {
            if (!/^\s*[-+]?\d+\s*$/.test(value)) fail("could not convert \"" + value + "\" to NumberLong");
            exact = BigInt(value.trim().replace(/^\+/, ""));
            if (exact !== BigInt.asIntN(64, exact)) fail("could not convert \"" + value + "\" to NumberLong");
        } else if (arguments.length >= 2) exact = (BigInt(arguments.length === 3 ? low : value) << 32n) | BigInt.asUintN(32, BigInt(arguments.length === 3 ? arguments[2] : low));
        else if (value instanceof NumberLong) exact = value.$v;
        else exact = fromDouble(Number(value));
        hide(this, "$v", BigInt.asIntN(64, exact));
    }
    const fromDouble = (number) => {
        if (Number.isNaN(number)) return 0n;
        if (number >= 9223372036854775807) return 9223372036854775807n;
        if (number <= -9223372036854775808) return -9223372036854775808n;
        return BigInt(Math.trunc(number));
    };
    kind(NumberLong, 18, {
        toNumber() { return Number(this.$v); },
        valueOf() { return Number(this.$v); },
        toString() {
            const exact = this.$v;
            const small = exact >= -2147483648n && exact <= 2147483647n;
            return small ? "NumberLong(" + exact + ")" : "NumberLong(\"" + exact + "\")";
        },
        toJSON() { return { $numberLong: String(this.$v) }; },
        tojson() { return this.toString(); },
        exactValueString() { return String(this.$v); },
        compare(other) { const b = NumberLong(other).$v; return this.$v < b ? -1 : this.$v > b ? 1 : 0; },
        equals(other) { return this.compare(other) === 0; },
    });
    Object.defineProperty(NumberLong.prototype, "floatApprox", { get() { return Number(this.$v); } });
    Object.defineProperty(NumberLong.prototype, "top", { get() { return Number(this.$v >> 32n); } });
    Object.defineProperty(NumberLong.prototype, "bottom", { get() { return Number(BigInt.asUintN(32, this.$v)); } });

    function NumberInt(value) {
        if (!(this instanceof NumberInt)) return new NumberInt(value);
        hide(this, "$v", value === undefined ? 0 : Number(value) | 0);
    }
    kind(NumberInt, 16, {
        toNumber() { return this.$v; },
        valueOf() { return this.$v; },
        toString() { return "NumberInt(" + this.$v + ")"; },
        toJSON() { return this.$v; },
        tojson() { return this.toString(); },
    });

    function NumberDecimal(value) {
        if (!(this instanceof NumberDecimal)) return new NumberDecimal(value);
        hide(this, "$v", natives.decimal(value === undefined ? "0" : value instanceof NumberDecimal ? value.$v : String(value)));
    }
    kind(NumberDecimal, 19, {
        toString() { return "NumberDecimal(\"" + this.$v + "\")"; },
        toJSON() { return { $numberDecimal: this.$v }; },
        tojson() { return this.toString(); },
    });

    function ObjectId(text) {
        if (!(this instanceof ObjectId)) return new ObjectId(text);
        if (text === undefined) text = Math.floor(Date.now() / 1000).toString(16).padStart(8, "0") + randomHex(16);
        if (text instanceof ObjectId) text = text.str;
        if (typeof text !== "string" || !/^[0-9a-fA-F]{24}$/.test(text)) fail("invalid object id: length or digits");
        Object.defineProperty(this, "str", { value: text.toLowerCase(), enumerable: false });
    }
    kind(ObjectId, 7, {
        toString() { return "ObjectId(\"" + this.str + "\")"; },
        valueOf() { return this.str; },
        toJSON() { return { $oid: this.str }; },
        tojson() { return this.toString(); },
        equals(other) { return other instanceof ObjectId && other.str === this.str; },
        getTimestamp() { return new Date(parseInt(this.str.slice(0, 8), 16) * 1000); },
    });
    define("ObjectID", ObjectId);

    function Timestamp(t, i) {
        if (!(this instanceof Timestamp)) return new Timestamp(t, i);
        this.t = t === undefined ? 0 : t >>> 0;
        this.i = i === undefined ? 0 : i >>> 0;
    }
    kind(Timestamp, 17, {
        getTime() { return this.t; },
        getInc() { return this.i; },
        toString() { return "Timestamp(" + this.t + ", " + this.i + ")"; },
        toJSON() { return { $timestamp: { t: this.t, i: this.i } }; },
        tojson() { return this.toString(); },
    });

    function BinData(subtype, text) {
        if (!(this instanceof BinData)) return new BinData(subtype, text);
        if (!(subtype >= 0 && subtype <= 255)) fail("BinData subtype must be between 0 and 255");
        if (typeof text !== "string") fail("BinData expects a string of base64");
        const hex = fromBase64(text);
        if (hex === null) fail("BinData could not decode base64 parameter");
        hide(this, "type", subtype);
        hide(this, "$v", hex);
    }
    const binary = (subtype, hex) => { const made = Object.create(BinData.prototype); hide(made, "type", subtype); hide(made, "$v", hex); return made; };
    kind(BinData, 5, {
        length() { return this.$v.length / 2; },
        subtype() { return this.type; },
        hex() { return this.$v; },
        base64() { return toBase64(this.$v); },
        toString() {
            if (this.type === 4 && this.$v.length === 32) return "UUID(\"" + dashed(this.$v) + "\")";
            return "BinData(" + this.type + ",\"" + this.base64() + "\")";
        },
        toJSON() { return { $binary: this.base64(), $type: (this.type < 16 ? "0" : "") + this.type.toString(16) }; },
        tojson() { return this.toString(); },
    });
    Object.defineProperty(BinData.prototype, "len", { get() { return this.$v.length / 2; } });
    const dashed = (hex) => hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
    define("UUID", function UUID(text) {
        const hex = text === undefined
            ? randomHex(12) + "4" + randomHex(3) + "89ab"[Math.floor(Math.random() * 4)] + randomHex(15)
            : String(text).replace(/-/g, "");
        if (!/^[0-9a-fA-F]{32}$/.test(hex)) fail("Invalid UUID string: " + text);
        return binary(4, hex.toLowerCase());
    });
    define("HexData", function HexData(subtype, hex) {
        if (!/^([0-9a-fA-F]{2})*$/.test(hex)) fail("HexData string must have an even number of hex digits");
        return binary(subtype, hex.toLowerCase());
    });
    define("MD5", function MD5(hex) { return HexData(5, hex); });

    function DBPointer(ns, id) {
        if (!(this instanceof DBPointer)) return new DBPointer(ns, id);
        this.ns = ns;
        this.id = id;
    }
    kind(DBPointer, 12, { toString() { return "DBPointer(\"" + this.ns + "\", " + this.id + ")"; }, tojson() { return this.toString(); } });

    function DBRef(collection, id, db) {
        if (!(this instanceof DBRef)) return new DBRef(...arguments);
        this.$ref = collection;
        this.$id = id;
        if (db !== undefined) this.$db = db;
    }
    hide(DBRef.prototype, "getCollection", function () { return this.$ref; });
    hide(DBRef.prototype, "getRef", function () { return this.$ref; });
    hide(DBRef.prototype, "getId", function () { return this.$id; });
    hide(DBRef.prototype, "getDb", function () { return this.$db; });
    define("DBRef", DBRef);

    function Code(code, scope) {
        if (!(this instanceof Code)) return new Code(code, scope);
        this.code = code === undefined ? "" : String(code);
        this.scope = scope === undefined ? null : scope;
    }
    kind(Code, 13, { toString() { return "Code({\"code\":" + JSON.stringify(this.code) + "})"; }, tojson() { return this.toString(); } });

    const single = (name, tag) => {
        const maker = { [name]: function () { return one; } }[name];
        const one = Object.create(maker.prototype);
        hide(maker.prototype, "$bson", tag);
        hide(maker.prototype, "toString", () => "[object " + name + "]");
        hide(maker.prototype, "toJSON", () => ({ ["$" + name[0].toLowerCase() + name.slice(1)]: 1 }));
        hide(maker.prototype, "tojson", () => "{ \"$" + name[0].toLowerCase() + name.slice(1) + "\" : 1 }");
        define(name, maker);
        return one;
    };
    const minKey = single("MinKey", 255);
    const maxKey = single("MaxKey", 127);

    define("ISODate", function ISODate(text) {
        if (text === undefined) return new Date();
        const found = /^(\d{4})-?(\d{2})-?(\d{2})([T ](\d{2})(:?(\d{2})(:?(\d{2}(\.\d+)?))?)?(Z|([+-])(\d{2}):?(\d{2})?)?)?$/.exec(text);
        if (!found) fail("invalid ISO date: " + text);
        const seconds = Number(found[9] || 0);
        let time = Date.UTC(+found[1], +found[2] - 1, +found[3], +(found[5] || 0), +(found[7] || 0), Math.floor(seconds), Math.round((seconds % 1) * 1000));
        if (found[12]) time -= (found[12] === "-" ? -1 : 1) * (Number(found[13]) * 60 + Number(found[14] || 0)) * 60000;
        return new Date(time);
    });

    // Helpers of arrays and objects.
    hide(Array, "contains", (array, item) => array.some((x) => x == item));
    hide(Array, "unique", (array) => array.filter((x, at) => array.findIndex((y) => y == x) === at));
    hide(Array, "shuffle", (array) => {
        for (let at = array.length - 1; at > 0; at--) {
            const other = Math.floor(Math.random() * (at + 1));
            [array[at], array[other]] = [array[other], array[at]];
        }
        return array;
    });
    hide(Array, "sum", (array) => {
        if (array.length === 0) return null;
        let sum = array[0];
        for (let at = 1; at < array.length; at++) sum += array[at];
        return sum;
    });
    hide(Array, "avg", (array) => (array.length === 0 ? null : Array.sum(array) / array.length));
    hide(Array, "stdDev", (array) => {
        const mean = Array.avg(array);
        return Math.sqrt(array.reduce((sum, x) => sum + (x - mean) * (x - mean), 0) / array.length);
    });
    hide(Array, "fetchRefs", (array) => array);
    hide(Object, "extend", (to, from) => Object.assign(to, from));
    hide(Object, "merge", (to, from) => Object.assign({}, to, from));
    hide(Object, "keySet", (object) => Object.keys(object));

    // As the shell prints values.
    const tojson = (value, indent = "", oneLine = false) => {
        if (value === undefined) return "undefined";
        if (value === null) return "null";
        switch (typeof value) {
            case "string": return JSON.stringify(value);
            case "number": case "boolean": return String(value);
            case "bigint": return String(value);
            case "function": return value.toString();
            case "symbol": return value.toString();
        }
        if (typeof value.tojson === "function") return value.tojson(indent, oneLine);
        if (value instanceof Date) return Number.isNaN(value.getTime()) ? "new Date(NaN)" : "ISODate(\"" + value.toISOString().replace(/\.000Z$/, "Z") + "\")";
        if (value instanceof RegExp) return value.toString();
        const deeper = oneLine ? "" : indent + "\t";
        const between = oneLine ? " " : "\n";
        const list = Array.isArray(value)
            ? value.map((item) => deeper + tojson(item, deeper, oneLine))
            : Object.keys(value).map((key) => deeper + JSON.stringify(key) + " : " + tojson(value[key], deeper, oneLine));
        const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
        if (list.length === 0) return Array.isArray(value) ? "[ ]" : "{ }";
        return open + between + list.join("," + between) + between + (oneLine ? "" : indent) + close;
    };
    define("tojson", (value, indent, oneLine) => tojson(value, typeof indent === "string" ? indent : "", Boolean(oneLine)));
    define("tojsononeline", (value) => tojson(value, "", true));
    define("tojsonObject", (value, indent, oneLine) => tojson(value, typeof indent === "string" ? indent : "", Boolean(oneLine)));
    hide(Array, "tojson", (value, indent, oneLine) => tojson(value, typeof indent === "string" ? indent : "", Boolean(oneLine)));
    // Where a server's functions print to is nobody's screen.
    define("print", () => undefined);
    define("printjson", () => undefined);
    define("printjsononeline", () => undefined);
    define("gc", () => undefined);
    define("isNumber", (x) => typeof x === "number");
    define("isString", (x) => typeof x === "string");
    define("isObject", (x) => typeof x === "object" && x !== null);
    define("hex_md5", (text) => natives.md5(String(text)));
    const natives = globalThis.$natives;
    delete globalThis.$natives;
    define("sleep", function sleep(milliseconds) {
        if (arguments.length !== 1 || typeof milliseconds !== "number") {
            throw new Error("sleep takes a single numeric argument -- sleep(milliseconds)");
        }
        natives.sleep(milliseconds);
    });
    // Only map functions have it.
    if (natives.emit) {
        define("emit", function emit(key, value) {
            if (arguments.length !== 2) throw new Error("emit takes 2 args");
            natives.emit(key, value);
        });
    }

    return {
        long: (exact) => { const made = Object.create(NumberLong.prototype); hide(made, "$v", exact); return made; },
        decimal: (text) => { const made = Object.create(NumberDecimal.prototype); hide(made, "$v", text); return made; },
        objectId: (hex) => { const made = Object.create(ObjectId.prototype); Object.defineProperty(made, "str", { value: hex }); return made; },
        binary,
        timestamp: (t, i) => new Timestamp(t, i),
        pointer: (ns, id) => new DBPointer(ns, id),
        code: (code, scope) => new Code(code, scope),
        date: (millis) => new Date(millis),
        regex: (pattern, flags) => {
            const known = [...flags].filter((flag) => "ims".includes(flag)).join("");
            try { return new RegExp(pattern, known); } catch (error) { return { $regex: pattern, $options: flags }; }
        },
        minKey: () => minKey,
        maxKey: () => maxKey,
        wellFormed: (text) => text.toWellFormed(),
        isDate: (value) => value instanceof Date,
        isRegex: (value) => value instanceof RegExp,
    };
})()
